"""What is worth a write: prompts larger than the folder, jobs in turn, and strangers."""

from __future__ import annotations

from cache_blocks import ONE, key_for, load, make_block, numbers, wait_until
from mlxq_worker.cache.disk import DiskTier


def run(tier: DiskTier, chain: range, slice_blocks: int = 8) -> int:
    """Compute a prompt whose blocks are ``chain``, as the memory cache does when it holds nothing.

    What is on disk is loaded, the rest computed slice by slice. Returns the blocks loaded.
    """
    keys = [key_for(number) for number in chain]
    known = next((n for n, key in enumerate(keys) if not tier.has(key)), len(keys))
    loaded = len(load(tier, *chain[:known]))
    for start in range(loaded, len(chain), slice_blocks):
        part = chain[start : start + slice_blocks]
        for number in part:
            if tier.wants(key_for(number)):
                tier.offer(make_block(number))
        tier.touch([key_for(number) for number in part])
    wait_until(lambda: not tier.stats()["waiting_bytes"])
    return loaded


def test_a_prompt_larger_than_the_folder_keeps_its_beginning(tiers):
    """And is written once, however often it comes."""
    tier = tiers(max_bytes=10 * ONE)
    hits = [run(tier, range(30)) for _ in range(8)]
    assert hits[2:] == [hits[2]] * 6
    assert hits[2] >= 8
    assert numbers(tier)[: hits[2]] == list(range(hits[2]))
    stats = tier.stats()
    assert stats["written_blocks"] <= 10
    assert stats["evicted_blocks"] == 0
    assert stats["refused_colder"] <= 8  # the slice in which it became full: no more are copied


def test_jobs_in_turn_do_not_push_each_other_out(tiers):
    tier = tiers(max_bytes=10 * ONE)
    chains = [range(100 * n, 100 * n + 6) for n in range(5)]
    hits = sum(run(tier, chain) for _ in range(20) for chain in chains)
    stats = tier.stats()
    assert hits >= 18 * 6
    assert stats["written_blocks"] <= 12


def test_strangers_do_not_push_out_what_is_used(tiers):
    """Neither those who come once, nor those who come twice in a row."""
    tier = tiers(max_bytes=10 * ONE)
    used = range(5)
    run(tier, used)
    run(tier, used)
    for n in range(1, 40):
        stranger = range(100 * n, 100 * n + 3)
        for _ in range(1 + n % 2):
            run(tier, stranger)
        assert run(tier, used) == 5
    stats = tier.stats()
    assert stats["written_bytes"] <= stats["written_blocks"] * (ONE + 4)
    assert stats["written_blocks"] <= 5 + 20 * 3  # those who came twice


def test_what_is_used_in_memory_alone_stays_on_disk(tiers):
    """The tier hears of it by ``wants`` and ``touch`` only."""
    tier = tiers(max_bytes=6 * ONE)
    for _ in range(2):
        run(tier, range(3))
    for n in range(1, 20):
        for number in range(3):
            assert not tier.wants(key_for(number))
        tier.touch([key_for(number) for number in range(3)])
        for _ in range(2):
            run(tier, range(100 * n, 100 * n + 2))
    assert numbers(tier, 3) == [0, 1, 2]


def test_what_is_used_no_more_makes_room(tiers):
    tier = tiers(max_bytes=6 * ONE)
    for chain in (range(6), range(100, 106)):
        for _ in range(4):
            run(tier, chain)
    assert run(tier, range(100, 106)) == 6
    assert tier.stats()["evicted_blocks"] == 6


def test_a_block_that_left_must_be_seen_twice_again(tiers):
    tier = tiers()
    assert [tier.wants(key_for(0)) for _ in range(2)] == [False, True]
    tier.offer(make_block(0))
    wait_until(lambda: tier.has(key_for(0)))
    assert tier.clear() == 1
    wait_until(lambda: not tier.has(key_for(0)))
    assert [tier.wants(key_for(0)) for _ in range(2)] == [False, True]


def test_who_fills_a_folder_by_hand_keeps_what_came_first(tiers):
    """``admit_at=1``: what was there before may leave, what this run wrote may not."""
    before = tiers()
    for _ in range(2):
        run(before, range(900, 904))
    assert before.close(60)
    tier = tiers(max_bytes=10 * ONE, admit_at=1)
    run(tier, range(14))
    assert numbers(tier, 14) == list(range(len(numbers(tier, 14))))
    assert not any(tier.has(key_for(number)) for number in range(900, 904))
    assert tier.stats()["evicted_blocks"] == 4


def test_a_folder_without_room_for_one_block_is_told_of_once(tiers, caplog):
    tier = tiers(max_bytes=ONE // 2, admit_at=1)
    run(tier, range(3))
    wait_until(lambda: tier.stats()["refused_too_large"])
    assert caplog.text.count("does not fit into it") == 1
    assert "--cache-dir-bytes" in caplog.text
