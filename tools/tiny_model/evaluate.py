"""Measure exact match on held-out compositions through mlx-vlm, greedily and in float32.

usage: python evaluate.py ../../worker/mlxq_worker/bundled/tiny-qwen3-vl --count 200
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from chat import Chat, Clip, Picture
from mlx.utils import tree_map
from mlx_vlm import generate
from mlx_vlm.utils import load
from tasks import TESTS


def load_float32(folder: Path) -> tuple[Any, Any]:
    """Load the model with its weights cast to float32; returns (model, processor)."""
    model, processor = load(str(folder), trust_remote_code=False)
    model.update(tree_map(lambda weight: weight.astype(mx.float32), model.parameters()))
    return model, processor


def messages(chat: Chat) -> tuple[list[dict[str, Any]], list[Picture], list[Clip]]:
    """Return a chat as template messages, and its pictures and clips in order."""
    out: list[dict[str, Any]] = []
    pictures: list[Picture] = []
    clips: list[Clip] = []
    for turn in chat:
        parts: list[dict[str, Any]] = []
        for part in turn.parts:
            if isinstance(part, str):
                parts.append({"type": "text", "text": part})
            elif isinstance(part, Picture):
                parts.append({"type": "image"})
                pictures.append(part)
            else:
                parts.append({"type": "video"})
                clips.append(part)
        out.append({"role": turn.role, "content": parts})
    return out, pictures, clips


def reply(model: Any, processor: Any, chat: Chat, max_tokens: int = 256) -> str:
    """Generate the assistant's next turn."""
    turns, pictures, clips = messages(chat)
    prompt = processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    media: dict[str, Any] = {}
    if pictures:
        media["image"] = [picture.image for picture in pictures]
    if clips:
        media["video"] = [clip.frames for clip in clips]
        media["fps"] = [clip.fps for clip in clips]
    return generate(
        model, processor, prompt, max_tokens=max_tokens, temperature=0.0, verbose=False, **media
    ).text


def run(folder: Path, names: list[str], count: int, seed: int) -> dict[str, dict[str, Any]]:
    """Return for each task how many of `count` last turns were right, and up to 5 wrong ones."""
    model, processor = load_float32(folder)
    results = {}
    for name in names:
        rng = random.Random(f"{seed}-{name}")
        start, wrong = time.perf_counter(), []
        for _ in range(count):
            chat = TESTS[name](rng, "test")
            got = reply(model, processor, chat[:-1])
            if got != chat[-1].text:
                wrong.append({"question": chat[-2].text[-80:], "wanted": chat[-1].text, "got": got})
        results[name] = {
            "right": count - len(wrong),
            "count": count,
            "seconds": round(time.perf_counter() - start, 1),
            "wrong": wrong[:5],
        }
        print(
            f"{name:<14}{count - len(wrong):>5} / {count}  {(count - len(wrong)) / count:7.1%}",
            flush=True,
        )
    return results


def main() -> None:
    """Print the table; `--json` also writes it with examples of wrong answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tasks", nargs="+", choices=tuple(TESTS), default=list(TESTS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    results = run(args.model, args.tasks, args.count, args.seed)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
