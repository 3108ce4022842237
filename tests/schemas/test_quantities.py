"""Sizes and durations, read and shown."""

from __future__ import annotations

import pytest

from mlxq_schemas.quantities import duration, shown_duration, shown_size, size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("0", 0), ("17", 17), ("17b", 17), (" 5 kB ", 5000), ("5K", 5000), ("5Ki", 5120)),
        *(("500MB", 500_000_000), ("1.5G", 1_500_000_000), ("1.5GiB", 1_610_612_736)),
        *(("20GiB", 20 << 30), ("20gib", 20 << 30), (".5M", 500_000), ("2TiB", 2 << 40)),
        ("9007199254740993", 9007199254740993),
        (5, 5),
    ],
)
def test_sizes(text: str | int, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "x", "5X", "-5", "5 5", "GiB", "1e9", "1,5G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("15min", 900), ("2h", 7200), ("7d", 604_800), (3, 3)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "5y", "nan", "1:30"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        duration(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB")),
        *((1024**2 - 1, "1 MiB"), (20 << 30, "20 GiB"), (5 << 50, "5,120 TiB")),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert shown_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (60, "1m"), (7500, "2h 5m"), (86_400, "1d"), (273_601, "3d 4h")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert shown_duration(seconds) == text
