"""The queue side of the worker: one background duty a file. It knows no MLX."""
