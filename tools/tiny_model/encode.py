"""Chats to token ids, rotary positions and patches, and their padded batches."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from chat import Chat, Clip, Picture
from layout import (
    IM_END,
    IM_START,
    IMAGE_PAD,
    MAX_PATCHES,
    MERGE,
    PATCH,
    TEMPORAL,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    image_size,
)
from PIL import Image
from tokenizers import Tokenizer

Batch = dict[str, np.ndarray]


@dataclass
class Block:
    """One grid of patches: `patches` [rows*cols, 3, frames, PATCH*PATCH] uint8, `start` its first token."""

    patches: np.ndarray
    rows: int
    cols: int
    start: int


@dataclass
class Encoded:
    """One chat: token ids, a loss weight per token (0: not learned), and its pictures."""

    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def add(self, ids: list[int], weight: float = 0.0) -> None:
        """Append tokens."""
        self.ids += ids
        self.weights += [weight] * len(ids)


class Encoder:
    """Turns chats into tokens just as the chat template and the processor do."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def __call__(self, chat: Chat) -> Encoded:
        """Encode a chat; the tokens of assistant turns get a weight above zero."""
        out = Encoded()
        for turn in chat:
            out.add([IM_START])
            pending = turn.role + "\n"
            if turn.role == "assistant":
                out.add(self._ids(pending))
                reply = [*self._ids(turn.text), IM_END]
                out.add(reply, len(reply) ** -0.5)
            else:
                for part in turn.parts:
                    if isinstance(part, str):
                        pending += part
                    elif isinstance(part, Picture):
                        out.add(self._ids(pending))
                        pending = ""
                        _add_block(out, [load(part.image)], IMAGE_PAD)
                    else:
                        self._add_clip(out, part, pending)
                        pending = ""
                out.add([*self._ids(pending), IM_END])
            out.add(self._ids("\n"))
        return out

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids if text else []

    def _add_clip(self, out: Encoded, clip: Clip, pending: str) -> None:
        frames = [np.asarray(frame) for frame in clip.frames]
        for first in range(0, len(frames), TEMPORAL):
            seconds = (first + (TEMPORAL - 1) / 2) / clip.fps
            out.add(self._ids(f"{pending}<{seconds:.1f} seconds>"))
            pending = ""
            _add_block(out, frames[first : first + TEMPORAL], VIDEO_PAD)


def load(image: Image.Image) -> np.ndarray:
    """Resize the way the image processor does; returns [height, width, 3] uint8."""
    height, width = image_size(image.height, image.width)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def _add_block(out: Encoded, frames: list[np.ndarray], pad: int) -> None:
    pixels = np.stack(frames)
    count, height, width, channels = pixels.shape
    rows, cols = height // PATCH, width // PATCH
    pixels = pixels.reshape(
        count, rows // MERGE, MERGE, PATCH, cols // MERGE, MERGE, PATCH, channels
    )
    patches = np.ascontiguousarray(pixels.transpose(1, 4, 2, 5, 7, 0, 3, 6)).reshape(
        rows * cols, channels, count, -1
    )
    out.add([VISION_START])
    out.blocks.append(Block(patches, rows, cols, len(out.ids)))
    out.add([pad] * (rows * cols // MERGE**2) + [VISION_END])


@functools.cache
def _grid(rows: int, cols: int) -> np.ndarray:
    return np.stack([np.repeat(np.arange(rows), cols), np.tile(np.arange(cols), rows)])


def positions(item: Encoded) -> np.ndarray:
    """Return the three rotary positions (time, row, column) of every token, [3, length] int32."""
    length = len(item.ids)
    out = np.empty((3, length), np.int32)
    now = done = 0
    for block in item.blocks:
        text = block.start - done
        out[:, done : block.start] = now + np.arange(text)
        now += text
        rows, cols = block.rows // MERGE, block.cols // MERGE
        done = block.start + rows * cols
        out[0, block.start : done] = now
        out[1:, block.start : done] = now + _grid(rows, cols)
        now += max(rows, cols)
    out[:, done:] = now + np.arange(length - done)
    return out


def collate(items: list[Encoded], multiple: int = 16) -> Batch:
    """Pad samples into one batch.

    ids, pos: [batch, length], [3, batch, length].  target_*: flat indices of the
    positions that predict a learned token, its id, weight and row.  With pictures
    also pixels [images, patches, 3, frames, PATCH*PATCH] (one frame: stills,
    two: `clips`), grid [images, 2], and feature/token indices of visual tokens.
    """
    length = -(-max(len(item.ids) for item in items) // multiple) * multiple
    ids = np.zeros((len(items), length), np.int64)
    weights = np.zeros((len(items), length), np.float32)
    pos = np.zeros((3, len(items), length), np.int32)
    blocks = []
    for row, item in enumerate(items):
        size = len(item.ids)
        ids[row, :size], weights[row, :size] = item.ids, item.weights
        pos[:, row, :size] = positions(item)
        blocks += [(block, row * length + block.start) for block in item.blocks]
    rows, cols = np.nonzero(weights)
    batch = {
        "ids": ids,
        "pos": pos,
        "target_at": rows * length + cols - 1,
        "target": ids[rows, cols],
        "weight": weights[rows, cols],
        "target_row": rows,
    }
    return batch | _pixels(blocks) if blocks else batch


def _pixels(blocks: list[tuple[Block, int]]) -> Batch:
    most = max(block.rows * block.cols for block, _ in blocks)
    assert most <= MAX_PATCHES
    stills = np.zeros((len(blocks), most, 3, 1, PATCH**2), np.uint8)
    moving = [index for index, (block, _) in enumerate(blocks) if block.patches.shape[2] > 1]
    clips = np.zeros((len(moving), most, 3, TEMPORAL, PATCH**2), np.uint8)
    features, tokens = [], []
    for index, (block, start) in enumerate(blocks):
        count = block.rows * block.cols
        if block.patches.shape[2] == 1:
            stills[index, :count] = block.patches
        else:
            clips[moving.index(index), :count] = block.patches
        features.append(np.arange(count // MERGE**2) + index * (most // MERGE**2))
        tokens.append(np.arange(count // MERGE**2) + start)
    return {
        "stills": stills,
        "clips": clips,
        "moving": np.array(moving, np.int64),
        "grid": np.array([(block.rows, block.cols) for block, _ in blocks], np.int64),
        "feature_at": np.concatenate(features),
        "token_at": np.concatenate(tokens),
    }
