"""``python -m mlxq_producer`` is the ``mlxq`` command."""

from mlxq_producer.cli import main

main()
