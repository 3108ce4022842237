"""No secrets in messages."""

from __future__ import annotations

import pytest

from mlxq_worker.process.redact import MAX_LENGTH, redact


@pytest.mark.parametrize(
    ("message", "clean"),
    [
        ("cannot open https://me:pw@host/a.png now", "cannot open https://…@host/a.png now"),
        ("redis://:pw@h:1/0", "redis://…@h:1/0"),
        (
            "GET https://b.example/x.png?sig=abc&t=1 gave 403",
            "GET https://b.example/x.png?… gave 403",
        ),
        (
            "not an image: data:image/png;base64,iVBORw0KGgo= (x)",
            "not an image: data:image/png,… (x)",
        ),
        ("plain: a@b.example, 3 > 2", "plain: a@b.example, 3 > 2"),
        ("half \ud83d", "half ?"),
    ],
)
def test_what_is_secret_goes(message: str, clean: str) -> None:
    assert redact(message) == clean


def test_it_is_cut_short() -> None:
    assert len(redact("x" * 1_000_000)) == MAX_LENGTH
    assert len(redact("data:image/png;base64," + "A" * 10_000_000)) < 50
