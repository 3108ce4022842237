"""Other users' folders and files: refused or left alone, never believed, never in the way."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cache_blocks import (
    ONE,
    file_of,
    is_as_made,
    key_for,
    load,
    make_block,
    numbers,
    outcome,
    program,
    wait_until,
    write,
)
from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.cli import app
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.config import WorkerConfig

STRANGER = 54321
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def filled(tiers) -> None:
    """Blocks 0 to 3 are in the folder."""
    tier = tiers()
    write(tier, *map(make_block, range(4)))
    assert tier.close(60)


PLACES = ["", "blocks", "blocks/5f", "tmp", "quarantine", "ledger"]


@root_only
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("place", PLACES)
def test_a_folder_of_another_user_is_refused(tiers, folder, place):
    path = folder.root / place
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match="another user's") as error:
        tiers()
    for part in (f"{path} ", "owner 54321, mode 0", f"chown 0 {path}", "--cache-shared"):
        assert part in error.value.message
    assert numbers(tiers(shared=True)) == [0, 1, 2, 3]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("mode", [0o770, 0o702])
@pytest.mark.parametrize("place", PLACES)
def test_a_folder_that_others_may_write_to_is_refused(tiers, folder, place, mode):
    path = folder.root / place
    path.chmod(mode)
    with pytest.raises(ConfigError, match="may be changed by other users") as error:
        tiers()
    for part in (f"{path} ", f"mode {mode:04o}", f"chmod {600 if path.is_file() else 700} {path}"):
        assert part in error.value.message
    assert numbers(tiers(shared=True)) == [0, 1, 2, 3]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("command", ["stats", "verify", "clear"])
def test_commands_obey_the_same(folder, command):
    (folder.root / "blocks").chmod(0o777)
    refused = CliRunner().invoke(app, [command, "--dir", str(folder.root)])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error[config]: cache folder ")
    assert "chmod 700" in refused.stderr
    arguments = [command, "--dir", str(folder.root), "--json"]
    done = CliRunner().invoke(app, arguments, env={"MLXQ_CACHE_SHARED": "1"})
    assert done.exit_code == 0, done.output
    assert 4 in json.loads(done.stdout).values()


def test_a_link_in_a_folders_place_is_refused(tiers, folder, tmp_path):
    tiers().close(60)
    elsewhere = tmp_path / "elsewhere"
    for place in ("blocks/5f", "tmp", "quarantine", "ledger"):
        path = folder.root / place
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        with pytest.raises(ConfigError, match="cache folder"):
            tiers()
        with pytest.raises(ConfigError, match=r"cache folder|no cache"):
            folder.check()
        path.unlink()
        elsewhere.rename(path)


def test_the_folder_itself_may_be_a_link(tiers, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    tier = tiers(folder=tmp_path / "link")
    write(tier, make_block(0))
    assert is_as_made(load(tier, 0)[0])


def test_a_link_that_comes_later_is_followed_by_nobody(tiers, folder, tmp_path):
    tier = tiers(max_bytes=3 * ONE)
    write(tier, make_block(0), make_block(1))
    fan, elsewhere = file_of(folder.root, 0).parent, tmp_path / "elsewhere"
    fan.rename(elsewhere)
    fan.symlink_to(elsewhere)
    assert load(tier, 0) == []
    write(tier, make_block(0))
    assert tier.stats()["refused_occupied"] == 1
    write(tier, *map(make_block, range(2, 9)))  # more than the bound: what is here goes
    assert tier.stats()["write_errors"] == 0
    assert [path.name for path in elsewhere.iterdir()] == [key_for(0).hex()]
    assert tier.clear() > 0
    assert len(list(elsewhere.iterdir())) == 1


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    try:  # the path may be longer than an address
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def writable(path: Path) -> None:
    root = next(parent for parent in path.parents if (parent / "source").exists())
    shutil.copy(root / "source", path)
    path.chmod(0o620)


def given_away(path: Path) -> None:
    writable(path)
    path.chmod(0o600)
    os.chown(path, STRANGER, STRANGER)


KINDS = [
    Path.mkdir,
    fifo,
    pytest.param(
        bound_socket, marks=pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc")
    ),
    dangling,
    writable,
    pytest.param(given_away, marks=root_only),
]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("early", [True, False])
def test_what_is_not_ours_is_left_alone_and_in_nobodys_way(tiers, folder, make, early, caplog):
    tier = tiers()
    write(tier, make_block(0))
    shutil.copy(file_of(folder.root, 0), folder.root / "source")
    assert tier.clear() == 1
    if early:
        assert tier.close(60)
    places = [
        file_of(folder.root, 0),
        folder.temporary / f"{key_for(1).hex()}.1.0123456789abcdef",
        folder.quarantine / f"{key_for(1).hex()}.corrupt.01234567",
    ]
    for path in places:
        make(path)
    before = [path.lstat() for path in places]
    tier = tiers(max_bytes=2 * ONE) if early else tier
    assert load(tier, 0) == []
    write(tier, make_block(0), *map(make_block, range(1, 5)))
    stats = tier.stats()
    assert (stats["refused_occupied"], stats["written_blocks"]) == (1, 5 if not early else 4)
    assert stats["write_errors"] == 0
    assert load(tier, 0) == []
    assert [is_as_made(block) for block in load(tier, 4)] == [True]
    assert tier.verify().strangers == 1
    tier.clear()
    assert [path.lstat() for path in places] == before
    assert ("1 files are not believed" in caplog.text) == early


@root_only
def test_a_block_that_is_given_away_while_we_run_is_a_miss(tiers, folder):
    tier = tiers()
    write(tier, make_block(0), make_block(1))
    os.chown(file_of(folder.root, 0), STRANGER, STRANGER)
    file_of(folder.root, 1).chmod(0o606)
    assert load(tier, 0) == load(tier, 1) == []
    assert tier.stats()["foreign"] == 2
    assert file_of(folder.root, 0).exists()
    assert file_of(folder.root, 1).exists()
    assert not list(folder.quarantine.iterdir())


@root_only
def test_what_others_own_does_not_count_for_the_bound(tiers, folder):
    tier = tiers()
    write(tier, *map(make_block, range(4)))
    assert tier.close(60)
    for number in (0, 1, 2):
        os.chown(file_of(folder.root, number), STRANGER, STRANGER)
    tier = tiers(max_bytes=2 * ONE)
    assert numbers(tier) == [3]
    write(tier, make_block(4), make_block(5))
    assert numbers(tier) == [4, 5]
    assert file_of(folder.root, 0).exists()


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder as /tmp is: everybody may put things there."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def as_user(uid: int, gid: int, root: Path, *options: int) -> dict:
    return outcome(program("user", root, uid, gid, *options))


@root_only
def test_a_folder_that_another_made_first_is_refused(common):
    """What the attack looks like: the name is known, and taken before the worker comes."""
    found = as_user(STRANGER, STRANGER, common / "cache", 0)
    assert found["written"] == 1
    with pytest.raises(ConfigError, match="another user's"):
        DiskTier(common / "cache", max_bytes=1 << 20, layout="test")
    shutil.copytree(common / "cache", common / "ours")
    found = as_user(STRANGER, STRANGER, common / "ours", 0)
    assert "another user's" in found["error"] or "Permission denied" in found["error"]


@root_only
def test_a_group_shares_a_folder_if_all_say_so(common):
    group = 4711
    (common / "cache").mkdir()
    os.chown(common / "cache", STRANGER, group)
    (common / "cache").chmod(0o2770)
    assert "error" in as_user(STRANGER, group, common / "cache", 0)
    first = as_user(STRANGER, group, common / "cache", 1)
    assert (first["written"], first["loaded"]) == (1, [0])
    second = as_user(STRANGER + 1, group, common / "cache", 1, 1, 3 * ONE)
    assert second["loaded"] == [0, 1]  # the other user's block, and its own
    third = as_user(STRANGER, group, common / "cache", 1, 5, 2 * ONE)
    assert third["evicted"] == 1  # of either
    assert third["errors"] == 0
    for path in (common / "cache").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o2770 if path.is_dir() else 0o660), path
        assert path.stat().st_gid == group


def test_a_parent_in_which_anybody_may_swap_folders_is_named(tmp_path, tiers, caplog):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    tiers(folder=tmp_path / "open" / "a" / "cache")
    assert f"{tmp_path / 'open'} may be written by all" in caplog.text
    caplog.clear()
    (tmp_path / "open").chmod(0o1777)
    tiers(folder=tmp_path / "open" / "b")
    assert not caplog.text


def test_the_option_reaches_the_folder(folder, tmp_path):
    from mlxq_worker.build import _disk

    assert not WorkerConfig(name="x").cache_shared
    config = WorkerConfig(name="x", cache_dir=folder.root, cache_shared=True)
    tier = _disk(config, 2)
    assert tier is not None
    wait_until(folder.ledger.exists)
    assert stat.S_IMODE(folder.ledger.stat().st_mode) == 0o660
    assert tier.close(60)
