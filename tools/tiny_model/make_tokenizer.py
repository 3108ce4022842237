"""Train the byte-level BPE tokenizer on the generated text.

usage: python make_tokenizer.py build/tokenizer
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from layout import CHAT_TEMPLATE, SPECIAL_TOKENS, VOCAB_SIZE
from scene import COLORS, SHAPES
from tasks import sample
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from words import WORDS

# The split that Qwen's tokenizers use: digits stand alone, words keep a leading space.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def corpus(samples: int, seed: int) -> Iterator[str]:
    """Yield the text of training samples, and every word often enough to become one token."""
    rng = random.Random(seed)
    for index in range(samples):
        for turn in sample(rng, long=index % 20 == 0):
            yield f"{turn.role}\n"
            yield turn.text
    for word in (*WORDS, *COLORS, *SHAPES):
        for _ in range(400):
            yield f"{word} {word}"
    for _ in range(4000):
        yield f"<{rng.randint(0, 30)}.{rng.randint(0, 9)} seconds>"


def train_tokenizer(samples: int, seed: int) -> Tokenizer:
    """Train a tokenizer whose special tokens take the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=20,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(samples, seed), trainer)
    return tokenizer


def tokenizer_config() -> dict[str, object]:
    """Return the contents of tokenizer_config.json."""
    flags = {
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {
            str(i): {"content": token, **flags} for i, token in enumerate(SPECIAL_TOKENS)
        },
    }


def main() -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(args.samples, args.seed)
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=1) + "\n")
    (args.out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    split = [
        word for word in (*WORDS, *COLORS, *SHAPES) if len(tokenizer.encode(" " + word).ids) > 1
    ]
    print(f"{tokenizer.get_vocab_size()} tokens; words of several tokens: {len(split)} {split[:8]}")


if __name__ == "__main__":
    main()
