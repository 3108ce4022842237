"""From templated text and pictures to what a model takes, by its own processor. No MLX work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxq_schemas.errors import InvalidJob
from mlxq_worker.models.prepared import Array, Prepared

if TYPE_CHECKING:
    from PIL.Image import Image

_TEXT_OUTPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})


def build_inputs(
    processor: Any, text: str, images: Sequence[Image], media: Sequence[str] = ()
) -> Prepared:
    """Tokenise ``text`` and process ``images``, one row without padding.

    Safe in any thread: outputs are copied to numpy here, so nothing lazy crosses threads.
    ``media`` are the pictures' content hashes. Raises :class:`InvalidJob` when the text does
    not have one placeholder for each picture.
    """
    placeholder = getattr(processor, "image_token", None)
    if isinstance(placeholder, str) and text.count(placeholder) != len(images):
        raise InvalidJob(
            f"the prompt holds {text.count(placeholder)} image placeholders ({placeholder}) for "
            f"{len(images)} images; leave that word out of the text"
        )
    if not images:
        tokenizer = getattr(processor, "tokenizer", processor)
        return Prepared(list(tokenizer(text, add_special_tokens=False)["input_ids"]))
    outputs = processor(text=[text], images=list(images), add_special_tokens=False)
    ids = np.asarray(outputs["input_ids"]).reshape(-1)
    arrays: dict[str, Array] = {
        name: np.array(value)
        for name, value in outputs.items()
        if name not in _TEXT_OUTPUTS and value is not None
    }
    return Prepared([int(i) for i in ids], arrays, tuple(media), len(images))
