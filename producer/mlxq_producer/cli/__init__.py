"""The ``mlxq`` command."""

from mlxq_producer.cli.app import app, main

__all__ = ["app", "main"]
