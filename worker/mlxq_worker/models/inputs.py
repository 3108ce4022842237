"""From templated text and pictures to what a model takes, by its own processor. No MLX work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxq_schemas.errors import InvalidJob, MediaError
from mlxq_worker.models.prepared import Array, Prepared

if TYPE_CHECKING:
    from PIL.Image import Image

_NOT_FOR_MODEL = frozenset({"input_ids", "attention_mask", "token_type_ids", "num_patches_list"})

_PLACEHOLDER = {"Gemma3Processor": "<start_of_image>", "InternVLChatProcessor": "<image>"}
"""What stands for an image in templated text, where that is not the processor's ``image_token``."""

_OPTIONS: dict[str, dict[str, Any]] = {
    # By default it would pad, and cut long prompts without a word.
    "InternVLChatProcessor": {"padding": False, "truncation": False, "return_tensors": None}
}


def build_inputs(
    processor: Any, text: str, images: Sequence[Image], media: Sequence[str] = ()
) -> Prepared:
    """Tokenise ``text`` and process ``images``, one row without padding.

    Safe in any thread: outputs are copied to numpy here, so nothing lazy crosses threads.
    ``media`` are the pictures' content hashes. Raises :class:`InvalidJob` when the text does
    not have one placeholder for each picture, :class:`MediaError` for pictures that the model's
    processor refuses, such as very long and thin ones.
    """
    check_placeholders(processor, text, len(images))
    tokenizer = getattr(processor, "tokenizer", processor)
    if not images:
        return Prepared(one_start(tokenizer(text)["input_ids"], tokenizer))
    # Options for the tokenizer would reach the image processors of some families, so the
    # tokenizer adds its start token where it does so, and a doubled one is dropped.
    options = _OPTIONS.get(type(processor).__name__, {})
    try:
        outputs = processor(text=[text], images=list(images), **options)
    except ValueError as error:
        raise MediaError(f"the model's processor refused an image: {error}") from error
    arrays = {
        name: _to_numpy(value)
        for name, value in outputs.items()
        if name not in _NOT_FOR_MODEL and value is not None
    }
    ids = one_start(np.asarray(outputs["input_ids"]).reshape(-1), tokenizer)
    cut = np.asarray(outputs["input_ids"]).size - len(ids)
    if cut and "mm_token_type_ids" in arrays:
        arrays["mm_token_type_ids"] = np.asarray(arrays["mm_token_type_ids"])[:, cut:]
    return Prepared(ids, arrays, tuple(media), len(images))


def placeholder_of(processor: Any) -> str | None:
    """The word that stands for a picture in templated text; None: the model takes none."""
    own = getattr(processor, "image_token", None)
    word = _PLACEHOLDER.get(type(processor).__name__, own)
    return word if isinstance(word, str) and hasattr(processor, "image_processor") else None


def check_placeholders(processor: Any, text: str, images: int) -> None:
    """Raise :class:`InvalidJob` unless the text has one placeholder for each picture."""
    placeholder = placeholder_of(processor)
    if placeholder is None:
        if images:
            raise InvalidJob("this model takes no images: send text only")
        return
    found = text.count(placeholder)
    if found != images:
        raise InvalidJob(
            f"the prompt holds {found} image placeholders ({placeholder}) for "
            f"{images} images; leave that word out of the text"
        )
    kinds = ("image", "video", "audio")
    others = [getattr(processor, f"{kind}_token", None) for kind in kinds]
    for word in others:
        if word and word != placeholder and word in text and _is_token(processor.tokenizer, word):
            raise InvalidJob(
                f"{word} stands for a medium in this model; leave that word out of the text"
            )


def _is_token(tokenizer: Any, word: str) -> bool:
    return tokenizer.convert_tokens_to_ids(word) not in {None, tokenizer.unk_token_id}


def one_start(ids: Any, tokenizer: Any) -> list[int]:
    """``ids`` with one start token, where template and tokenizer have both set one."""
    ids = [int(i) for i in ids]
    start = getattr(tokenizer, "bos_token_id", None)
    return ids[1:] if start is not None and ids[:2] == [start, start] else ids


def check_ids(what: str, ids: Iterable[int], vocabulary: int) -> None:
    """Raise :class:`InvalidJob` that names the first id that the model has no embedding for.

    ``what`` says where the ids come from; ``vocabulary`` 0: not known. An id beyond the
    embedding would read memory that is not the model's.
    """
    if not vocabulary:
        return
    for token in ids:
        if not 0 <= token < vocabulary:
            raise InvalidJob(
                f"{what} has the token id {token}; this model's ids go from 0 to "
                f"{vocabulary - 1}: use those of the model's own tokenizer"
            )


def _to_numpy(value: Any) -> Array | list[Array]:
    """A copy; a list of arrays of different shapes stays a list."""
    if isinstance(value, (list, tuple)):
        items = [np.array(item) for item in value]
        return items if len({item.shape for item in items}) > 1 else np.array(items)
    return np.array(value)
