"""The SSD tier in one process: what is written, what comes back, what goes."""

from __future__ import annotations

import logging
import shutil
import stat
import time

import pytest

from cache_blocks import (
    LAYOUT,
    ONE,
    file_bytes,
    file_of,
    is_as_made,
    key_for,
    load,
    make_block,
    numbers,
    same,
    wait_until,
    write,
)
from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_folder import QUARANTINED, Temporary
from mlxq_worker.cache.disk_ledger import HOUR, Ledger

BIG = 1 << 30


def test_blocks_outlive_the_process(tiers):
    first = tiers()
    write(first, *map(make_block, range(5)))
    assert first.close(60)
    second = tiers()
    assert numbers(second) == [0, 1, 2, 3, 4]
    blocks = load(second, 0, 1, 2, 3, 4)
    assert [same(block, make_block(n)) for n, block in enumerate(blocks)] == [True] * 5
    assert blocks[0].arrays[0].dtype == "bfloat16"
    stats = second.stats()
    assert (stats["hits"], stats["misses"], stats["blocks"]) == (5, 0, 5)
    assert stats["bytes"] == second.size(key_for(0)) * 5 == ONE * 5


def test_a_run_ends_at_the_first_gap(tiers):
    tier = tiers()
    write(tier, make_block(0), make_block(1), make_block(3))
    assert [block.key for block in load(tier, 0, 1, 2, 3)] == [key_for(0), key_for(1)]
    assert load(tier) == load(tier, 2, 0) == []
    assert tier.stats()["misses"] == 2 + 2


def test_what_is_there_is_not_written_again(tiers, folder):
    tier, other = tiers(), tiers()
    write(tier, make_block(0))
    before = file_of(folder.root, 0).stat()
    assert not tier.offer(make_block(0))
    assert not tier.wants(key_for(0), shared=True)
    other.offer(make_block(0))  # it may not know yet
    wait_until(lambda: not other.stats()["waiting_bytes"])
    assert other.stats()["written_blocks"] == 0
    assert other.stats()["refused_present"] == 1
    after = file_of(folder.root, 0).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_what_another_is_writing_is_not_written_too(tiers, folder):
    tier = tiers()
    with folder.lock():
        being_written = Temporary.make(folder, key_for(0), 10)
    write(tier, make_block(0))
    assert tier.stats()["refused_present"] == 1
    being_written.drop()
    write(tier, make_block(0))
    assert numbers(tier) == [0]


def test_a_block_is_wanted_when_seen_again_or_known_to_be_shared(tiers):
    tier = tiers(admit_at=3)
    assert [tier.wants(key_for(0)) for _ in range(4)] == [False, False, True, True]
    assert tier.wants(key_for(1), shared=True)
    assert not tier.wants(key_for(2))
    write(tier, make_block(0))
    assert not tier.wants(key_for(0))


def test_the_queue_is_bounded_and_offers_never_wait(tiers, folder):
    tier = tiers(queue_bytes=3500)
    with folder.lock():  # so that the writer cannot go on
        taken = [tier.offer(make_block(number)) for number in range(6)]
        assert taken == [True, True, True, False, False, False]
        assert not tier.wants(key_for(9), shared=True)
        assert not tier.offer(make_block(0))
    wait_until(lambda: not tier.stats()["waiting_bytes"])
    assert numbers(tier) == [0, 1, 2]
    assert (tier.stats()["refused_queue"], tier.stats()["refused_present"]) == (3, 1)


def test_close_writes_what_waits_or_says_that_it_did_not(tiers, folder, tmp_path):
    tier = tiers()
    for number in range(20):
        tier.offer(make_block(number))
    assert tier.close(60)
    assert not tier.offer(make_block(20))
    assert not tier.wants(key_for(20), shared=True)
    assert load(tier, 0) == []
    assert numbers(tiers()) == list(range(20))
    late = DiskTier(tmp_path / "cache", max_bytes=BIG, layout=LAYOUT)
    with folder.lock():
        late.offer(make_block(21))
        assert not late.close(0)
    late.close(60)  # what had begun may have ended


def test_the_least_recently_used_goes_first(tiers, folder):
    tier = tiers(max_bytes=5 * ONE)
    for number in range(5):
        write(tier, make_block(number))
    tier.touch([key_for(0)])
    load(tier, 2)
    write(tier, make_block(5), make_block(6))
    assert numbers(tier) == [0, 2, 4, 5, 6]
    assert (tier.stats()["evicted_blocks"], tier.stats()["evicted_bytes"]) == (2, 2 * ONE)
    assert file_bytes(folder) <= 5 * ONE


def test_of_a_chain_the_last_goes_first(tiers):
    tier = tiers(max_bytes=5 * ONE)
    chain = list(range(5))
    for number in chain:
        tier.offer(make_block(number))
    tier.touch([key_for(number) for number in chain])
    wait_until(lambda: not tier.stats()["waiting_bytes"])
    write(tier, make_block(6), make_block(7))
    assert numbers(tier) == [0, 1, 2, 6, 7]
    load(tier, 0, 1, 2)
    write(tier, make_block(8), make_block(9))
    write(tier, make_block(5))
    assert numbers(tier) == [0, 1, 5, 8, 9]


def test_uses_outlive_the_process_and_are_seen_by_others(tiers):
    first, other = tiers(max_bytes=3 * ONE), tiers(max_bytes=3 * ONE)
    for number in range(3):
        write(first, make_block(number))
    wait_until(lambda: numbers(other) == [0, 1, 2])
    first.touch([key_for(0)])
    assert first.close(60)
    write(other, make_block(3))
    assert numbers(other) == [0, 2, 3]
    other.touch([key_for(2)])
    assert other.close(60)
    third = tiers(max_bytes=2 * ONE)
    assert numbers(third) == [2, 3]


def test_a_block_larger_than_the_folder_is_refused(tiers):
    tier = tiers(max_bytes=3 * ONE)
    write(tier, make_block(0))
    assert not tier.offer(make_block(1, 10 * ONE))
    write(tier, make_block(1, 3 * ONE - 20))  # only with its header too large
    assert numbers(tier) == [0]
    assert tier.stats()["refused_too_large"] == 2


def test_the_write_budget_holds_over_restarts_and_workers(tiers, folder):
    first = tiers(write_budget=3 * ONE)
    write(first, make_block(0), make_block(1))
    assert first.close(60)
    second, third = tiers(write_budget=3 * ONE), tiers(write_budget=3 * ONE)
    second.clear()
    write(second, make_block(2))
    write(third, make_block(3))
    assert not third.offer(make_block(4))
    assert not third.wants(key_for(4), shared=True)
    assert third.stats()["refused_budget"] == 2
    wait_until(lambda: numbers(third) == [2])
    with folder.lock() as fd:
        ledger = Ledger.read(fd)
        assert ledger.last_day(time.time()) == 3 * ONE
        ledger.hour -= 25
        ledger.write(fd)
    write(tiers(write_budget=3 * ONE), make_block(5))
    wait_until(lambda: numbers(third) == [2, 5])


def test_a_ledger_forgets_after_a_day_and_not_before():
    ledger = Ledger()
    start = 1000.0 * HOUR
    for hour in range(24):
        ledger.charge(start + hour * HOUR, 1)
    assert ledger.last_day(start + 24 * HOUR) == 24
    assert ledger.last_day(start + 25 * HOUR) == 23
    assert ledger.last_day(start) == 23  # a clock set back
    assert ledger.last_day(start + 500 * HOUR) == 0


def test_a_damaged_ledger_is_a_new_one(tiers, folder):
    write(tiers(write_budget=BIG), make_block(0))
    folder.ledger.write_bytes(b"x" * 100)
    write(tiers(write_budget=BIG), make_block(1))
    assert numbers(tiers()) == [0, 1]


def test_a_damaged_file_is_a_miss_is_put_away_and_may_be_written_again(tiers, folder, caplog):
    tier = tiers()
    write(tier, *map(make_block, range(20)))
    for number in range(QUARANTINED + 3):
        raw = bytearray(file_of(folder.root, number).read_bytes())
        raw[-1] ^= 1
        file_of(folder.root, number).write_bytes(raw)
        assert load(tier, number, 19) == []
        assert not tier.has(key_for(number))
    assert tier.stats()["corrupt"] == QUARANTINED + 3
    assert len(list(folder.quarantine.iterdir())) == QUARANTINED
    assert "quarantine" in caplog.text
    write(tier, make_block(0))
    assert is_as_made(load(tier, 0)[0])


def test_files_of_another_layout_key_or_version_are_misses(tiers, folder):
    write(tiers(layout="other"), make_block(0))
    tier = tiers()
    write(tier, make_block(1), make_block(2))
    shutil.copy(file_of(folder.root, 1), file_of(folder.root, 3))
    raw = bytearray(file_of(folder.root, 2).read_bytes())
    raw[8] += 1
    file_of(folder.root, 2).write_bytes(raw)
    assert [load(tier, number) for number in (0, 2, 3)] == [[], [], []]
    stats = tier.stats()
    assert (stats["foreign"], stats["future"], stats["corrupt"]) == (2, 1, 0)
    assert sorted(path.name.split(".")[1] for path in folder.quarantine.iterdir()) == [
        "foreign",
        "foreign",
        "future",
    ]


def test_damaged_files_count_and_leave_before_blocks(tiers, folder):
    tier = tiers(max_bytes=3 * ONE)
    write(tier, *map(make_block, range(3)))
    file_of(folder.root, 2).write_bytes(bytes(ONE))
    assert load(tier, 2) == []
    assert file_bytes(folder) == 3 * ONE
    write(tier, make_block(4))
    assert numbers(tier) == [0, 1, 4]
    assert not list(folder.quarantine.iterdir())


def test_a_smaller_bound_is_kept_from_the_start(tiers, folder):
    first = tiers()
    for number in range(6):
        write(first, make_block(number))
    assert numbers(tiers(max_bytes=2 * ONE)) == [4, 5]
    assert file_bytes(folder) == 2 * ONE


def test_leftovers_of_the_dead_go_those_of_the_living_stay(tiers, folder):
    tiers().close(60)
    with folder.lock():
        living = Temporary.make(folder, key_for(7), 100)
    dead = folder.temporary / f"{key_for(8).hex()}.1.0123456789abcdef"
    dead.write_bytes(b"half a block")
    tier = tiers()
    assert list(folder.temporary.iterdir()) == [living.path]
    assert tier.stats()["stale_files"] == 1
    living.drop()


def test_files_are_for_this_user_alone(tiers, folder):
    write(tiers(), make_block(0))
    for path in [folder.root, *folder.root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_strangers_in_the_folder_are_left_alone(tiers, folder):
    tiers().close(60)
    fan = file_of(folder.root, 0).parent
    (fan / "notes.txt").write_text("mine")
    (fan / ("f" * 64)).write_text("in the wrong place")
    file_of(folder.root, 0).mkdir()
    tier = tiers(max_bytes=ONE)
    write(tier, make_block(1))
    assert (tier.stats()["blocks"], tier.stats()["write_errors"]) == (1, 0)
    assert tier.verify().strangers == 3
    assert tier.clear() == 1
    assert (fan / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_removed_comes_again(tiers, folder):
    tier = tiers(retry_after=0.01)
    write(tier, make_block(0))
    shutil.rmtree(folder.root)
    assert load(tier, 0) == []
    wait_until(lambda: tier.offer(make_block(1)))
    wait_until(lambda: tier.has(key_for(1)))
    assert is_as_made(load(tier, 1)[0])


def test_clear_and_verify_leave_the_tier_at_work(tiers, folder):
    tier = tiers()
    write(tier, *map(make_block, range(4)))
    file_of(folder.root, 3).write_bytes(b"")
    report = tier.verify()
    assert (report.blocks, report.bytes, dict(report.damaged)) == (3, 3 * ONE, {"corrupt": 1})
    assert not report.clean
    assert tier.stats()["corrupt"] == 1
    assert tier.verify().clean
    assert tier.clear() == 3
    wait_until(lambda: not numbers(tier))
    write(tier, make_block(3))
    assert is_as_made(load(tier, 3)[0])


def test_a_load_may_be_cancelled(tiers):
    tier = tiers(readers=1)
    write(tier, make_block(0))
    loads = [tier.load([key_for(0)]) for _ in range(50)]
    cancelled = [one.cancel() for one in loads]
    for one, gone in zip(loads, cancelled, strict=True):
        assert gone or len(one.result(60)) == 1
    assert len(load(tier, 0)) == 1


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/mlxq", "/dev/null"])
def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache folder .*: give a folder"):
        DiskTier(tmp_path / place, max_bytes=1, layout="x")


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"max_bytes": 1, "write_budget": -1}])
def test_bounds_that_make_no_sense_are_a_clear_error(tmp_path, options):
    with pytest.raises(ConfigError, match="above 0"):
        DiskTier(tmp_path, layout="x", **options)


def test_nothing_is_logged_in_ordinary_use(tiers, caplog):
    with caplog.at_level(logging.INFO):
        tier = tiers(max_bytes=3 * ONE)
        write(tier, *map(make_block, range(9)))
        load(tier, 8, 0)
    assert not caplog.records
