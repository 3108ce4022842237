"""Whether somebody edited a file of rows since we wrote it.

The ledger keeps how long the file was when a run ended, and a digest of it. What a kill left, or
cut off, is no edit: only whole lines that no row of the ledger gives are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mlxq_producer.errors import OutputEdited
from mlxq_producer.pipeline.ledger import Ledger

_BLOCK: Final = 1 << 20


def note(path: Path, ledger: Ledger) -> None:
    """Keep what the file is now: it is all ours."""
    size = path.stat().st_size
    ledger.set(f"sum:{path}", f"{size}:{_digest(path, size)}")
    ledger.set(f"open:{path}", "")


def begin(path: Path, ledger: Ledger) -> None:
    """A run is about to add to the file: if it is killed, what stands behind may be its own."""
    ledger.set(f"open:{path}", "1")


def forget(path: Path, ledger: Ledger) -> None:
    """The file is about to be made anew."""
    ledger.set(f"sum:{path}", "")


def check_lines(path: Path, ledger: Ledger, base: int, ours: Iterable[bytes]) -> None:
    """Raise :class:`OutputEdited` if the file was edited beyond its first ``base`` bytes.

    ``ours`` are the bytes of header and rows, read only if the file is not as it was.
    """
    if _is_same(path, ledger):
        if _has_grown(path, ledger) and not ledger.get(f"open:{path}"):
            raise _refusal(path)
        return
    # 8 bytes a line: other rows may stand in another order.
    known = {hash(line.rstrip(b"\r")) for data in ours for line in data.split(b"\n")}
    with path.open("rb") as file:
        file.seek(base)
        for number, line in enumerate(file):
            if not line.endswith(b"\n") or b"\0" in line:
                return  # the last one, which a kill cut off, or a power cut left as zeros
            plain = line if number or base else line.removeprefix(b"\xef\xbb\xbf")
            if hash(plain.rstrip(b"\r\n")) not in known:
                raise _refusal(path)


def check_whole(path: Path, ledger: Ledger) -> None:
    """Raise :class:`OutputEdited` if the file is not what it was."""
    if not _is_same(path, ledger):
        raise _refusal(path)


def _is_same(path: Path, ledger: Ledger) -> bool:
    """Whether the file begins as it was; True where that is not known, or there is no file."""
    kept = ledger.get(f"sum:{path}")
    if not kept or not path.exists():
        return True
    size, _, digest = kept.partition(":")
    return path.stat().st_size >= int(size) and _digest(path, int(size)) == digest


def _has_grown(path: Path, ledger: Ledger) -> bool:
    """Whether whole lines were added; half a line or zeros are what a crash leaves."""
    kept = ledger.get(f"sum:{path}")
    if not kept or not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(int(kept.partition(":")[0]))
        return any(line.endswith(b"\n") and b"\0" not in line for line in file)


def _digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def _refusal(path: Path) -> OutputEdited:
    return OutputEdited(
        f"{path} was edited since mlxq wrote it, and would be lost: rename it, and it is made "
        "again beside yours; or give another name, or --existing overwrite"
    )
