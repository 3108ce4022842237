"""Geometry, special tokens and chat template shared by every step of the recipe."""

from __future__ import annotations

import math

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PAD, IM_START, IM_END, VISION_START, VISION_END, VISION_PAD, IMAGE_PAD, VIDEO_PAD = range(8)
VOCAB_SIZE = 1280

PATCH = 8  # pixels a side of one patch
MERGE = 2  # patches a side that become one visual token
TEMPORAL = 2  # frames in one patch
FACTOR = PATCH * MERGE  # every side is resized to a multiple of this many pixels
MIN_PIXELS, MAX_PIXELS = 64 * 64, 112 * 112
MIN_VIDEO_PIXELS, MAX_VIDEO_PIXELS = 4 * 64 * 64, 4 * 96 * 96  # frames x height x width
MAX_PATCHES = MAX_PIXELS // PATCH**2
POSITION_GRID = 14  # learned positions a side
FRAMES = (4, 8)  # fewest and most frames that a video is sampled to
PATCH_VALUES = 3 * TEMPORAL * PATCH * PATCH

# One line, so that no stray white space reaches the prompt.  Roles unknown to the
# model are folded into the three that it was trained on.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- set role = message['role'] -%}"
    "{%- if role == 'developer' -%}{%- set role = 'system' -%}"
    "{%- elif role not in ['system', 'assistant'] -%}{%- set role = 'user' -%}{%- endif -%}"
    "{{- '<|im_start|>' + role + '\n' -}}"
    "{%- set content = message['content'] -%}"
    "{%- if content is string -%}{{- content -}}"
    "{%- elif content is mapping -%}{{- content['text'] or '' -}}"
    "{%- elif content -%}{%- for part in content -%}"
    "{%- if part is string -%}{{- part -}}"
    "{%- elif part is mapping -%}"
    "{%- if part['type'] in ['image', 'image_url', 'input_image'] or 'image' in part or 'image_url' in part -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part['type'] in ['video', 'video_url', 'input_video'] or 'video' in part or 'video_url' in part -%}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- elif part['text'] is string -%}{{- part['text'] -}}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def image_size(height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) in pixels that the image processor resizes to."""
    return _fit(height, width, 1, 1, MIN_PIXELS, MAX_PIXELS)


def video_size(frames: int, height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) in pixels that the video processor resizes to."""
    padded = math.ceil(frames / TEMPORAL) * TEMPORAL
    return _fit(height, width, frames, padded, MIN_VIDEO_PIXELS, MAX_VIDEO_PIXELS)


def _fit(height: int, width: int, frames: int, padded: int, low: int, high: int) -> tuple[int, int]:
    new_h, new_w = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    area = frames * height * width
    if padded * new_h * new_w > high:
        scale = math.sqrt(area / high)
        new_h = max(FACTOR, math.floor(height / scale / FACTOR) * FACTOR)
        new_w = max(FACTOR, math.floor(width / scale / FACTOR) * FACTOR)
    elif padded * new_h * new_w < low:
        scale = math.sqrt(low / area)
        new_h = math.ceil(height * scale / FACTOR) * FACTOR
        new_w = math.ceil(width * scale / FACTOR) * FACTOR
    return new_h, new_w
