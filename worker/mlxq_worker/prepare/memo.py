"""Inputs prepared before: the same words and pictures, or the same picture with other words."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from mlxq_worker.models.inputs import check_placeholders, one_start, placeholder_of
from mlxq_worker.models.prepared import Prepared


@dataclass(frozen=True)
class _Picture:
    """One picture's arrays, and the tokens that stand for it in any prompt."""

    prepared: Prepared
    tokens: list[int]


class Memo:
    """Bounded in bytes; what was used longest ago leaves first. Any thread may use it.

    A picture's tokens replace one placeholder token. They are taken over into another prompt where
    the tokenizer cuts at both their ends anyway, so that the words around them do not matter.
    """

    def __init__(self, processor: Any, max_bytes: int) -> None:
        self._processor = processor
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Prepared | _Picture] = OrderedDict()
        self.nbytes = 0
        self.counts: Counter[str] = Counter()
        word = placeholder_of(processor)
        token = self._tokenizer.convert_tokens_to_ids(word) if word else None
        self._placeholder = token if token in _cutting(self._tokenizer) else None

    def find(self, text: str, media: tuple[str, ...]) -> Prepared | None:
        """The inputs of a prompt, if these or those of its only picture are known."""
        with self._lock:
            whole = self._use((text, media))
            picture = self._use(media) if whole is None and len(media) == 1 else None
        if isinstance(whole, Prepared):
            self.counts["same"] += 1
            return whole
        if not isinstance(picture, _Picture) or self._placeholder is None:
            return None
        check_placeholders(self._processor, text, 1)
        ids: list[int] = self._tokenizer(text)["input_ids"]
        if ids.count(self._placeholder) != 1:
            return None
        place = ids.index(self._placeholder)
        self.counts["same_picture"] += 1
        ids = one_start([*ids[:place], *picture.tokens, *ids[place + 1 :]], self._tokenizer)
        return replace(picture.prepared, ids=ids)

    def keep(self, text: str, prepared: Prepared) -> None:
        """Remember the inputs of a prompt with pictures."""
        if not prepared.images:
            return
        tokens = self._tokens(text, prepared)
        with self._lock:
            self._put((text, prepared.media), prepared)
            if tokens is not None:
                self._put(prepared.media, _Picture(prepared, tokens))

    def _tokens(self, text: str, prepared: Prepared) -> list[int] | None:
        """What stands for the only picture, if that is the same in any prompt."""
        about_tokens = {"mm_token_type_ids", "token_type_ids"} & set(prepared.arrays)
        if prepared.images != 1 or self._placeholder is None or about_tokens:
            return None
        plain = one_start(self._tokenizer(text)["input_ids"], self._tokenizer)
        if plain.count(self._placeholder) != 1:
            return None
        place = plain.index(self._placeholder)
        after = plain[place + 1 :]
        end = len(prepared.ids) - len(after)
        tokens = prepared.ids[place:end]
        fits = [*plain[:place], *tokens, *after] == prepared.ids
        cutting = _cutting(self._tokenizer)
        return tokens if fits and tokens and {tokens[0], tokens[-1]} <= cutting else None

    def _use(self, key: Hashable) -> Prepared | _Picture | None:
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def _put(self, key: Hashable, value: Prepared | _Picture) -> None:
        if key in self._known or _nbytes(value) > self._max_bytes:
            return
        self._known[key] = value
        self.nbytes += _nbytes(value)
        while self.nbytes > self._max_bytes:
            _, old = self._known.popitem(last=False)
            self.nbytes -= _nbytes(old)


def _nbytes(value: Prepared | _Picture) -> int:
    """Bytes of the arrays; those that two entries share count twice."""
    prepared = value.prepared if isinstance(value, _Picture) else value
    lists = (value if isinstance(value, list) else [value] for value in prepared.arrays.values())
    return sum(array.nbytes for arrays in lists for array in arrays) + 8 * len(prepared.ids)


def _cutting(tokenizer: Any) -> set[int]:
    """Ids of tokens at which text is cut, whatever stands beside them."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {
        number
        for number, token in added.items()
        if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    }
