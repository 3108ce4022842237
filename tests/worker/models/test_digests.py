"""Digests are remembered for as long as a file is what it was, and never believed beyond that."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import mlxq_worker.models.digests as subject
from mlxq_worker.models.digests import LARGE, Changing, digests
from mlxq_worker.models.identity import folder_digest, folder_state


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files just written count as settled: what is remembered is looked at at once."""
    monkeypatch.setattr(subject, "_SETTLED_NS", 0)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "remembered" / "digests.json"


def make(file: Path, size: int = 3 * LARGE, seed: int = 0) -> Path:
    file.write_bytes(np.random.default_rng(seed).bytes(size))
    time.sleep(0.01)  # its clock must be past the time of change
    return file


def sha256(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


class Reads:
    """Counts the files that are read whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[Path] = []
        read = subject._read
        monkeypatch.setattr(subject, "_read", lambda file: self.files.append(file) or read(file))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def test_a_known_file_is_not_read_again(tmp_path, memory, reads):
    file = make(tmp_path / "weights")
    for _ in range(3):
        assert digests([file], memory) == {file: sha256(file)}
    assert reads.files == [file]


def test_by_a_link_it_is_the_same_file(tmp_path, memory, reads):
    file = make(tmp_path / "blob")
    link = tmp_path / "model.safetensors"
    link.symlink_to(file)
    assert digests([link], memory)[link] == digests([file], memory)[file] == sha256(file)
    assert len(reads.files) == 1


def test_an_edit_is_seen_though_size_and_time_are_put_back(tmp_path, memory):
    file = make(tmp_path / "weights")
    before = file.stat()
    digests([file], memory)
    with file.open("r+b") as stream:
        stream.seek(LARGE + 17)
        stream.write(b"other")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests([file], memory)[file] == sha256(file)


def test_another_file_in_its_place_is_seen(tmp_path, memory):
    file = make(tmp_path / "weights")
    digests([file], memory)
    make(tmp_path / "next", seed=1).replace(file)
    assert digests([file], memory)[file] == sha256(file)


def test_what_may_change_within_a_tick_is_not_remembered(tmp_path, memory, reads, monkeypatch):
    monkeypatch.setattr(subject, "_SETTLED_NS", 3600 * 10**9)
    file = make(tmp_path / "weights")
    for _ in range(2):
        digests([file], memory)
    assert len(reads.files) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'{"PATH": 5}',
        b'{"PATH": [1, 2, 3, 4, 5, "zz"]}',
        b"\xff\xfe",
        b'{"PATH": [[], [], [], [], [], "00"]}',
    ],
)
def test_a_damaged_memory_is_made_anew(tmp_path, memory, reads, content):
    file = make(tmp_path / "weights")
    memory.parent.mkdir()
    memory.write_bytes(content.replace(b"PATH", str(file).encode()))
    for _ in range(2):
        assert digests([file], memory) == {file: sha256(file)}
    assert len(reads.files) == 1


@pytest.mark.parametrize("how", ["world-writable", "group-writable", "another owner's"])
def test_what_others_may_have_written_is_not_believed(tmp_path, memory, how, caplog):
    if how == "another owner's" and os.geteuid():
        pytest.skip("only root can give files away")
    file = make(tmp_path / "weights")
    digests([file], memory)
    entries = json.loads(memory.read_text())
    entries[str(file)][-1] = "00" * 32
    memory.write_text(json.dumps(entries))
    if how == "another owner's":
        os.chown(memory, 12345, -1)
    else:
        memory.chmod(0o646 if how == "world-writable" else 0o664)
    assert digests([file], memory) == {file: sha256(file)}
    assert str(memory) in caplog.text
    assert memory.stat().st_mode & 0o777 == 0o600


def test_without_a_place_to_remember_all_goes_on(tmp_path):
    file = make(tmp_path / "weights")
    blocked = tmp_path / "a file"
    blocked.write_text("")
    assert digests([file], blocked / "mlxq" / "digests.json") == {file: sha256(file)}


def test_only_the_last_files_are_remembered(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(subject, "_MOST", 3)
    files = [make(tmp_path / str(n), LARGE, n) for n in range(5)]
    digests(files, memory)
    assert list(json.loads(memory.read_text())) == [str(file) for file in files[-3:]]


def test_a_file_that_is_being_written_has_no_digest(tmp_path, memory):
    file = make(tmp_path / "weights", 64 * LARGE)  # reading it takes many ticks
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with file.open("r+b") as stream:
                stream.write(os.urandom(8))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(Changing, match="weights changes while it is read"):
            digests([file], memory)
    finally:
        stop.set()
        writer.join()


def test_many_at_once_agree(tmp_path, memory):
    files = [make(tmp_path / str(n), LARGE, n) for n in range(6)]
    want = {file: sha256(file) for file in files}
    found: list[dict[Path, bytes]] = []
    threads = [
        threading.Thread(target=lambda: found.append(digests(files, memory))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [want] * 4
    assert digests(files, memory) == want


def test_every_byte_of_large_weights_counts(tmp_path, monkeypatch):
    """Holes are read as zeros: a large file costs little here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weights = folder / "model.safetensors"
    size = 80 << 20
    with weights.open("wb") as stream:
        stream.truncate(size)
    before, state = folder_digest(folder), folder_state(folder)
    assert folder_digest(folder) == before
    with weights.open("r+b") as stream:
        stream.seek(size // 1024 * 500 + 5000)  # between samples of 4 KiB in 1,024 places
        stream.write(b"\x01")
    assert folder_digest(folder) != before
    assert folder_state(folder) != state
