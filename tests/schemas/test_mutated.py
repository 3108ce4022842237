"""Messages whose bytes were changed at random: only our errors come out of their readers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from mlxq_schemas import Job
from mlxq_schemas.errors import MlxqError
from mlxq_schemas.wire import decode_event, decode_job, decode_result, encode_job, pack

PARTS = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "a.png"}}]
SAMPLING = {"temperature": 0.5, "stop": ["a"], "logit_bias": {"3": 1.0}}
FIELDS = {"messages": [{"role": "user", "content": PARTS}], "sampling": SAMPLING}
JOB = encode_job(Job.model_validate({"id": "j", **FIELDS, "metadata": {"a": 1}}))
END = pack({"v": 1, "type": "finished", "job": "j", "seq": 3, "t": 1.0, "reason": "stop"})
ODD = (
    b"\xd6\xff\xff\xff\xff\xff",  # a timestamp
    b"\xc7\x0c\xff" + b"\xff" * 12,  # one out of range
    b"\xcb\x7f\xf8\0\0\0\0\0\0",  # NaN
    b"\x81\x81\xa1a\x01\x02",  # a map as a key
    b"\x81\x90\x01",  # a list as a key
    b"\xa3\xed\xa0\xbd",  # half a surrogate pair
    b"\x81" * 2000,
    *(bytes([kind]) for kind in (0x80, 0x81, 0x90, 0xC0, 0xC1, 0xCF, 0xD4, 0xDF)),
)
READERS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "job": (JOB, lambda data: decode_job(data, "j")),
    "job without a name": (JOB, decode_job),
    "event": (END, decode_event),
    "result": (END, decode_result),
}


def mutated(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found))
        match rng.randrange(3):
            case 0:
                found[at] = rng.randrange(256)
            case 1 if len(found) > 8:
                del found[at : at + rng.randint(1, 5)]
            case _:
                found[at:at] = rng.choice(ODD)
    return bytes(found)


@pytest.mark.parametrize("name", READERS)
def test_only_our_errors(name):
    data, read = READERS[name]
    rng = random.Random(7)
    refused = 0
    for _ in range(2500):
        try:
            read(mutated(data, rng))
        except MlxqError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize("key", [b"\x81\xa1a\x01", b"\x91\x01", b"\xc0", b"\xc3"])
def test_a_field_is_named_by_a_text(key):
    """Not by a map, a list, nothing or true."""
    data = b"\x81\xa8metadata\x81" + key + b"\x01"
    with pytest.raises(MlxqError) as caught:
        decode_job(data, "j")
    assert caught.value.code in {"bad_message", "invalid_job"}
