"""``python -m mlxq_worker``."""

from mlxq_worker.cli import main

if __name__ == "__main__":
    main()
