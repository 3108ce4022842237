"""Text leaves whole: no half character, no part of a stop string, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mlxq_worker.bundled import bundled_model_path
from mlxq_worker.engine.text import (
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    StopMatcher,
    WindowDetokenizer,
    make_detokenizers,
)


def byte_level() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(bundled_model_path() / "tokenizer.json"))


def sentence_piece() -> PreTrainedTokenizerFast:
    """A vocabulary with byte fallback and metaspace, as Llama and Gemma have."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"abcdefgé漢",
        "▁",
        "▁ab",
        "▁cd",
        "ef",
    ]
    vocab = {piece: n for n, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


BYTE_LEVEL, SENTENCE_PIECE = byte_level(), sentence_piece()


def decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def streamed(tokenizer, ids: list[int]) -> str:
    detokenizer = make_detokenizers(tokenizer)()
    return "".join([detokenizer.add(i) for i in ids] + [detokenizer.flush()])


def test_the_right_decoder_is_chosen():
    assert isinstance(make_detokenizers(BYTE_LEVEL)(), ByteLevelDetokenizer)
    assert isinstance(make_detokenizers(SENTENCE_PIECE)(), ByteFallbackDetokenizer)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["bytes", "pieces"])
@given(text=st.text(max_size=40))
@settings(deadline=None, max_examples=150)
def test_streamed_text_is_the_decoded_text(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert streamed(tokenizer, ids) == decode(tokenizer, ids)


@given(ids=st.lists(st.integers(0, 1023), max_size=40))
@settings(deadline=None, max_examples=300)
def test_any_ids_of_a_byte_level_vocabulary(ids):
    assert streamed(BYTE_LEVEL, ids) == decode(BYTE_LEVEL, ids)


def bytes_of(text: str, cut: int = 0) -> list[int]:
    """Byte tokens of the piece vocabulary for ``text``, the last ``cut`` left out."""
    raw = text.encode()
    return [1 + byte for byte in raw[: len(raw) - cut]]


AB = SENTENCE_PIECE.get_vocab()["▁ab"]
CUT = [
    (bytes_of("你好", cut=2), "你\ufffd"),
    (bytes_of("你好", cut=1), "你\ufffd"),
    ([AB, *bytes_of("🙂", cut=2)], "ab\ufffd"),
    ([AB, 1 + 0xFF, AB], "ab\ufffd ab"),
    ([*bytes_of("é"), 1 + 0xFF, AB], "é\ufffd ab"),
    ([*bytes_of("好", cut=1), *bytes_of("é")], "\ufffdé"),
    ([*bytes_of("好", cut=1), AB, *bytes_of("é")], "\ufffd abé"),
    ([AB, 1 + 0xBD, 1 + 0xBD], "ab\ufffd\ufffd"),
    (bytes_of(" a\n"), "a\n"),
    ([AB, *bytes_of(" a")], "ab a"),
]


@pytest.mark.parametrize(("ids", "wanted"), CUT)
def test_a_cut_character_is_one_mark_and_whole_ones_stay(ids, wanted):
    assert streamed(SENTENCE_PIECE, ids) == wanted


@given(
    st.lists(
        st.one_of(
            st.text(min_size=1, max_size=3).map(lambda text: text.encode()),
            st.binary(min_size=1, max_size=5),
            st.sampled_from(["▁", "▁ab", "ef", "é", "<unk>", "beyond"]),
        ),
        max_size=8,
    )
)
@settings(deadline=None, max_examples=300)
def test_any_mixture_of_bytes_and_pieces(parts):
    vocab = {**SENTENCE_PIECE.get_vocab(), "beyond": 5_000}
    ids, raw = list[int](), b""
    for part in parts:
        if isinstance(part, bytes):
            ids += [1 + byte for byte in part]
            raw += part
        else:
            ids.append(vocab[part])
            raw += part.replace("▁", " ").encode() if part not in {"<unk>", "beyond"} else b""
    # Pieces end a run of bytes, but they are UTF-8 themselves: so joined bytes decode the same.
    assert streamed(SENTENCE_PIECE, ids) == raw.removeprefix(b" ").decode(errors="replace")


@pytest.mark.parametrize("text", ["你好", "a🙂b"])
@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["bytes", "pieces"])
def test_what_is_whole_leaves_at_once_wherever_it_is_cut(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer is SENTENCE_PIECE:
        ids = bytes_of(text)
    raw = text.encode()
    for end in range(len(ids) + 1):
        detokenizer = make_detokenizers(tokenizer)()
        sent = "".join(detokenizer.add(i) for i in ids[:end])
        assert text.startswith(sent)
        assert sent + detokenizer.flush() == raw[:end].decode(errors="replace")


def test_a_window_gives_whole_characters_before_a_cut_one():
    """A decoder of another kind, whose tokens may hold a character and a part of the next."""
    tokens = {0: "你".encode() + "好".encode()[:1], 1: "好".encode()[1:], 2: b"ab"}
    detokenizer = WindowDetokenizer(
        lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace")
    )
    assert [detokenizer.add(i) for i in (2, 0, 1, 0)] == ["ab", "你", "好", "你"]
    assert [detokenizer.flush(), detokenizer.flush()] == ["\ufffd", ""]


def test_ids_beyond_the_vocabulary_are_nothing():
    for tokenizer in (BYTE_LEVEL, SENTENCE_PIECE):
        ids = tokenizer("ab", add_special_tokens=False)["input_ids"]
        assert streamed(tokenizer, [5_000, *ids, 9_999]) == decode(tokenizer, ids)


def test_no_half_character_leaves():
    detokenizer = make_detokenizers(BYTE_LEVEL)()
    ids = BYTE_LEVEL("🙂é漢", add_special_tokens=False)["input_ids"]
    pieces = [detokenizer.add(i) for i in ids]
    assert "".join(pieces) == "🙂é漢"
    assert all("\ufffd" not in piece for piece in pieces)


@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 4), min_size=30, max_size=30),
)
@settings(deadline=None, max_examples=500)
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text, stops, cuts):
    matcher = StopMatcher(stops)
    released, at = "", 0
    for cut in cuts:
        released += matcher.add(text[at : at + cut])
        at += cut
        found = [i for s in stops if (i := text[:at].find(s)) >= 0]
        assert text.startswith(released)
        assert not found or matcher.stopped
        if matcher.stopped:
            break
    if matcher.stopped:
        ends = [text[:at].find(stop) for stop in stops]
        assert released == text[: min(end for end in ends if end >= 0)]
    else:
        assert released + matcher.flush() == text


def test_a_stop_string_over_several_tokens_never_shows(bundled_bench):
    from mlxq_schemas import Sampling
    from mlxq_worker.engine.request import Request

    prompt = bundled_bench.prompt(("user", 0, "Count from 3 to 12."))
    plain = bundled_bench.run([Request("a", prompt)])["a"].text
    assert plain == "3 4 5 6 7 8 9 10 11 12"
    outcome = bundled_bench.run([Request("a", prompt, sampling=Sampling(stop=["9 10", "zzz"]))])[
        "a"
    ]
    assert outcome.text == "3 4 5 6 7 8 "
    assert outcome.reason == "stop"


def test_a_row_that_was_lost_between_its_stop_string_and_its_end_only_ends(bundled_bench):
    from dataclasses import replace

    from mlxq_schemas import Sampling
    from mlxq_worker.engine.request import Request

    prompt = bundled_bench.prompt(("user", 0, "Count from 3 to 12."))
    request = Request("a", prompt, sampling=Sampling(stop=["8"]))
    whole = bundled_bench.run([request])["a"]
    assert (whole.text, whole.reason) == ("3 4 5 6 7 ", "stop")
    rest = bundled_bench.run([replace(request, prior_ids=whole.tokens)])["a"]
    assert (rest.tokens, rest.text, rest.reason) == ([], "", "stop")
