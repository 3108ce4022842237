"""The worker of mlxq: drains Redis streams into a continuous batch generator on MLX."""
