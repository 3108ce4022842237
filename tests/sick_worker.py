"""A worker on a real model whose device fails; ``SICK`` says how.

``SICK`` is ``WORK AFTER TIMES ERROR``: the adapter's method WORK raises RuntimeError(ERROR) TIMES
times (``ever``: always) after AFTER calls. ``build`` instead of a method fails while loading.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from mlxq_worker import build as build_module
from mlxq_worker.cli import main
from mlxq_worker.engine.generator import BatchGenerator


class SickGenerator(BatchGenerator):
    """A generator whose device fails as ``SICK`` says."""

    def __init__(self, *args: Any, **options: Any) -> None:
        work, after, times, error = os.environ["SICK"].split(" ", 3)
        if work == "build":
            raise RuntimeError(error)
        super().__init__(*args, **options)
        real = getattr(self._adapter, work)
        calls, last = 0, sys.maxsize if times == "ever" else int(after) + int(times)

        def failing(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if int(after) < calls <= last:
                raise RuntimeError(error)
            return real(*args)

        setattr(self._adapter, work, failing)


if __name__ == "__main__":
    build_module.BatchGenerator = SickGenerator
    main()
