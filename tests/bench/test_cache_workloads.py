"""Four workloads with caches of every size: texts equal, and little is computed twice."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from functools import cache
from itertools import permutations

import pytest

from bench.cache_workloads import MARKS, put, run, table
from bench.workloads.asking import Sizes, workloads
from bench.workloads.ideal import Names, Prompt, Room, least
from bench.workloads.measuring import Cell
from bench.workloads.settings import SETTINGS
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.models.prepared import Prepared

SHORT = [one for one in SETTINGS if one.name in {"ample, SSD", "tight", "tight, tight SSD"}]


@cache
def short() -> list[Cell]:
    """The first setting tells what a workload wants."""
    return run(Sizes().short(), settings=SHORT)


@cache
def full() -> list[Cell]:
    return run(Sizes())


LONG = [
    pytest.mark.slow,
    pytest.mark.skipif("MLXQ_TEST_SHORT" in os.environ, reason="takes ten minutes"),
]
FORMS = pytest.mark.parametrize(
    "cells", [pytest.param(short, id="short"), pytest.param(full, id="full", marks=LONG)]
)


@FORMS
@pytest.mark.timeout(1200)
def test_every_text_is_that_without_caches(cells):
    assert {(cell.workload, cell.setting, cell.name): cell.wrong for cell in cells()} == {
        (cell.workload, cell.setting, cell.name): 0 for cell in cells()
    }
    assert len({cell.workload for cell in cells()}) == 4


@FORMS
@pytest.mark.timeout(1200)
def test_counters_add_up(cells):
    for cell in cells():
        assert cell.computed + cell.cached == cell.prompt_tokens, cell
        assert cell.used_bytes <= cell.read_bytes, cell
        if cell.setting in {"off", "0", "0, SSD"}:
            assert cell.cached == 0, cell
            assert cell.encoded <= cell.pictures, cell  # equal ones that begin together: once
        if "SSD" not in cell.setting:
            assert cell.read_bytes == cell.written_bytes == cell.evicted_ssd == 0, cell


@FORMS
@pytest.mark.timeout(1200)
def test_with_ample_memory_no_block_is_computed_twice(cells):
    ample = [cell for cell in cells() if cell.setting in {"ample", "ample, SSD"}]
    assert {cell.name for cell in ample} == {"cold", "warm", "restart"}
    for cell in ample:
        assert cell.computed == cell.least, cell
        assert cell.evicted_memory == cell.evicted_ssd == 0, cell


@FORMS
@pytest.mark.timeout(1200)
def test_what_is_read_is_of_use(cells):
    for cell in cells():
        assert cell.read_bytes <= 1.1 * cell.used_bytes, cell


@FORMS
@pytest.mark.timeout(1200)
def test_with_room_each_picture_is_encoded_once(cells):
    for cell in cells():
        if cell.setting in {"ample", "ample, SSD"}:
            assert cell.encoded == cell.least_encoded, cell


@FORMS
@pytest.mark.timeout(1200)
def test_a_folder_makes_up_for_little_memory(cells):
    """Of a prompt that is larger than a third of all, or waits for room, a little is computed."""
    for cell in cells():
        if cell.setting == "tight, SSD" and cell.name != "cold" and "turns" in cell.workload:
            assert cell.computed <= 1.3 * cell.least, cell


def test_the_table_has_a_row_for_each_cell():
    lines = table(short()).splitlines()
    rows = [line for line in lines if line.endswith("| equal |")]
    assert len(rows) == len(short())
    assert {line.count("|") for line in lines if line.startswith("|")} == {16}
    assert "1 differ" in table([replace(short()[0], wrong=1)])


def test_tables_go_between_the_marks_of_a_page():
    page = f"# Caches\n{MARKS[0]}\nold\n{MARKS[1]}\nmore\n"
    assert put(page, "| new |") == f"# Caches\n{MARKS[0]}\n\n| new |\n\n{MARKS[1]}\nmore\n"
    assert put(put(page, "| old |"), "| new |") == put(page, "| new |")
    with pytest.raises(ValueError, match="values"):
        put("# Caches\n", "| new |")


def test_workloads_are_as_large_as_they_say():
    chats, systems, captions, pictures = workloads(Sizes())
    assert [len(chat.turns) for chat in chats.chats] == [20] * 4
    assert len({chat.system for chat in systems.chats}) == 200
    assert len({chat.turns for chat in systems.chats}) == 5
    assert len(systems.chats) == len(set(systems.chats)) == 1000
    assert len({chat.turns[0].picture for chat in captions.chats}) == len(captions.chats) == 64
    assert len({chat.system for chat in captions.chats}) == 1
    assert len({chat.turns[0].picture for chat in pictures.chats}) == 8
    assert len(set(pictures.chats)) == 64
    assert workloads(Sizes()) == [chats, systems, captions, pictures]


PICTURE = 9


def prompt(names: Names, *ids: int, media: tuple[str, ...] = ()) -> Prompt:
    return names.prompt(Prepared(list(ids), media=media, images=len(media)))


def test_the_ideal_knows_blocks_by_tokens_and_pictures_before_them():
    names = Names([PICTURE])
    text, other = [1] * BLOCK, [2] * BLOCK
    shown = [PICTURE] * 4 + [1] * (BLOCK - 4)
    long = prompt(names, *text, *other, 3)
    assert long.blocks == prompt(names, *text, *other, 4).blocks
    assert prompt(names, *text, *other).blocks == long.blocks[:1]  # the last token is computed
    assert not {*prompt(names, *other, *text, 3).blocks} & {*long.blocks}
    red, blue = (prompt(names, *text, *shown, *text, 3, media=(name,)) for name in ("r", "b"))
    assert red.blocks[:1] == blue.blocks[:1] == long.blocks[:1]
    assert not {*red.blocks[1:]} & {*blue.blocks[1:]}
    assert red.shown == BLOCK + 4


def test_the_ideal_computes_each_block_once_where_there_is_room():
    names = Names([PICTURE])
    one = prompt(names, *[1] * 70)
    two = prompt(names, *[1] * 40)
    pictured = prompt(names, *[PICTURE] * 4, *[1] * 40, media=("red",))
    asked = [one, two, one, pictured, pictured]
    cold, warm, again = least([asked, asked, asked], Room(), restarts=[2])
    assert cold.tokens == 70 + 8 + 6 + 44 + 12
    assert warm.tokens == 6 + 8 + 6 + 12 + 12
    assert (cold.pictures, warm.pictures) == (1, 0)
    assert again == cold
    kept = Room(kept_blocks=math.inf, kept_pictures=math.inf)
    assert least([asked, asked], kept, restarts=[1])[1] == warm


def test_the_ideal_is_the_best_of_all_policies():
    """Against every way of choosing what leaves, for small caches and short stories."""
    rng = random.Random(4)
    for _ in range(30):
        asked = [rng.choice(((1,), (1, 2), (1, 3), (4,), (4, 5))) for _ in range(6)]
        room = rng.randrange(1, 4)
        prompts = [Prompt(BLOCK * len(blocks) + 1, blocks) for blocks in asked]
        [found] = least([prompts], Room(blocks=room))
        assert found.tokens == BLOCK * fewest(asked, room) + len(asked), (asked, room)


def fewest(asked: list[tuple[int, ...]], room: int) -> int:
    """Blocks computed at least; a block counts as known only behind those before it."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for blocks in asked:
        following: dict[frozenset[int], int] = {}
        for held, cost in states.items():
            known = next((n for n, block in enumerate(blocks) if block not in held), len(blocks))
            now = held | set(blocks)
            for kept in {frozenset(order[:room]) for order in permutations(now)}:
                total = cost + len(blocks) - known
                following[kept] = min(total, following.get(kept, total))
        states = following
    return min(states.values())
