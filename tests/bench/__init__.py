"""Measurements: each is a script that prints its figures, and a test with the mark ``bench``."""
