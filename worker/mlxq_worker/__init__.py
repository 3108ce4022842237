"""The worker of mlxq: drains Redis streams into a continuous batch generator on MLX."""

import os

# Newer GPUs multiply several float32 rows in TF32, but one row exactly: a text would depend on what
# else is in the batch. MLX looks at this once, before its first product, so it is set before any
# module of ours imports MLX. Who wants the speed sets it to 1.
os.environ.setdefault("MLX_ENABLE_TF32", "0")
