"""From token ids to text, one token at a time, per row.

The pieces that :meth:`Detokenizer.add` and :meth:`Detokenizer.flush` return, joined, are what
the tokenizer decodes from all ids at once (special tokens skipped). Where bytes are no character,
whole characters beside them stay, and each cut character is one U+FFFD.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol

_REPLACEMENT = "\ufffd"
_WINDOW = 8
"""Most tokens that one character may span before its bytes are taken to be broken."""
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class Detokenizer(Protocol):
    """Incremental decoder of one row."""

    def add(self, token: int) -> str:
        """The characters that became certain with ``token``; may be empty."""
        ...

    def flush(self) -> str:
        """What is still held: bytes of an unfinished character, shown as U+FFFD."""
        ...


class ByteLevelDetokenizer:
    """For byte-level BPE: each token is some bytes; characters are cut out of the stream."""

    def __init__(self, token_bytes: dict[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(self._token_bytes.get(token, b""))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any tokenizer: decode a short window before and after the new token, and compare.

    A SentencePiece decoder drops a leading space at the start of what it is given; the window
    keeps one known piece in front, so that only the row's real start is a start.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._known: list[int] = []
        self._pending: list[int] = []
        self._released = 0
        """Characters of the pending tokens that have left."""

    def add(self, token: int) -> str:
        self._pending.append(token)
        piece = self._piece()
        whole = piece.rstrip(_REPLACEMENT)
        if len(whole) < len(piece) and len(self._pending) < _WINDOW:
            released, self._released = self._released, max(self._released, len(whole))
            return whole[released:]
        return self._close(piece) if piece else ""

    def flush(self) -> str:
        return self._close(self._piece())

    def _close(self, piece: str) -> str:
        text = piece[self._released :]
        self._known, self._pending, self._released = self._pending, [], 0
        return text

    def _piece(self) -> str:
        before = self._decode(self._known)
        return self._decode(self._known + self._pending)[len(before) :]


class ByteFallbackDetokenizer(WindowDetokenizer):
    """For vocabularies of pieces and, for characters that these lack, of single bytes.

    Tokenizers replace each byte of a run that is not UTF-8 as a whole, the whole characters in it
    too; so the bytes (``byte_of`` a token) are decoded here. ``nothing``: tokens without text,
    which do not even part two bytes.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        byte_of: Mapping[int, int],
        nothing: Callable[[int], bool],
    ) -> None:
        super().__init__(decode)
        self._byte_of = byte_of
        self._nothing = nothing
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun = False

    def add(self, token: int) -> str:
        if self._nothing(token):
            return ""
        begun, self._begun = self._begun, True
        byte = self._byte_of.get(token)
        if byte is None:
            return self._end_run() + super().add(token)
        text = super().flush()
        self._known = [token]
        if not begun and byte < 0x80:
            return text + self._decode([token])  # a space may be dropped at the start
        return text + self._decoder.decode(bytes([byte]))

    def flush(self) -> str:
        return self._end_run() + super().flush()

    def _end_run(self) -> str:
        return self._decoder.decode(b"", final=True)


def make_detokenizers(tokenizer: Any) -> Callable[[], Detokenizer]:
    """A factory of per-row decoders for a Hugging Face tokenizer.

    Ids beyond the tokenizer's vocabulary (padding of the embedding matrix) decode to nothing.
    """
    table = _byte_table(tokenizer)
    if table is not None:
        return lambda: ByteLevelDetokenizer(table)
    size, special = len(tokenizer), _special(tokenizer)

    def nothing(token: int) -> bool:
        return token >= size or token in special

    def decode(ids: list[int]) -> str:
        text: str = tokenizer.decode(
            [i for i in ids if i < size],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return text

    byte_of = _byte_tokens(tokenizer, decode)
    if byte_of:
        return lambda: ByteFallbackDetokenizer(decode, byte_of, nothing)
    return lambda: WindowDetokenizer(decode)


def _special(tokenizer: Any) -> frozenset[int]:
    """Ids that ``skip_special_tokens`` skips."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return frozenset(tokenizer.all_special_ids)
    added = backend.get_added_tokens_decoder().items()
    return frozenset(token for token, about in added if about.special)


def _byte_tokens(tokenizer: Any, decode: Callable[[list[int]], str]) -> dict[int, int]:
    """The byte that each byte-fallback token stands for; empty if the tokenizer has none."""
    found: dict[int, int] = {}
    for text, token in tokenizer.get_vocab().items():
        if match := _BYTE_TOKEN.fullmatch(str(text)):
            found[token] = int(match[1], 16)
    # The name alone does not make it one: the decoder must take it for a byte.
    letters = [token for token, byte in found.items() if byte == ord("A")]
    return found if letters and decode(letters[:1]) == "A" else {}


def _byte_table(tokenizer: Any) -> dict[int, bytes] | None:
    """Bytes of every token, if the tokenizer is a byte-level BPE; else None."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    if not _is_byte_level(json.loads(backend.to_str()).get("decoder")):
        return None
    added = backend.get_added_tokens_decoder()
    table: dict[int, bytes] = {}
    for text, token in backend.get_vocab(with_added_tokens=True).items():
        if token in added:
            special = added[token].special
            table[token] = b"" if special else added[token].content.encode()
        else:
            table[token] = _to_bytes(text)
    return table


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    if decoder.get("type") == "Sequence":
        kinds = [part.get("type") for part in decoder.get("decoders", ())]
        return kinds == ["ByteLevel"]
    return decoder.get("type") == "ByteLevel"


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's mapping)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(plain))
    table = {chr(byte): byte for byte in plain}
    table.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return table


def _to_bytes(text: str) -> bytes:
    table = _byte_of_char()
    if all(char in table for char in text):
        return bytes(table[char] for char in text)
    return text.encode()


class StopMatcher:
    """Holds text back while it may still become a stop string.

    After a stop string is found, :attr:`stopped` is True, and the text before it has been
    released: no part of a stop string ever leaves.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """The characters that may leave after ``text`` came in."""
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            released, self._held = self._held[: min(found)], ""
            return released
        keep = self._longest_open_stop()
        released, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        return released

    def flush(self) -> str:
        """The held text: the row has ended, so it became no stop string."""
        held, self._held = self._held, ""
        return held

    def _longest_open_stop(self) -> int:
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest
