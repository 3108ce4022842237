"""Servers of every kind that mlxq knows, started for tests."""
