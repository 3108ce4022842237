"""Stands in for the worker package where a test is about the producer's processes."""
