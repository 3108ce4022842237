"""``python -m mlxq_worker.cache``: looks after a cache folder."""

from mlxq_worker.cache.cli import main

if __name__ == "__main__":
    main()
