"""Qwen3-VL in plain PyTorch, with the Hugging Face parameter names.

Pictures of a batch are padded into one [images, patches, values] tensor, so that no
loop runs over them; this is for training only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from layout import MAX_PATCHES, MERGE, PATCH, PATCH_VALUES, POSITION_GRID, TEMPORAL, VOCAB_SIZE
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of the model; `deepstack` lists the vision layers whose features are injected."""

    hidden: int = 128
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 320
    rope_theta: float = 10_000.0
    mrope: tuple[int, int, int] = (6, 5, 5)
    vision_hidden: int = 96
    vision_depth: int = 3
    vision_heads: int = 3
    vision_intermediate: int = 192
    deepstack: tuple[int, ...] = ()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [..., head_dim]."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-6)


class VisionAttention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.proj = nn.Linear(size, size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        images, patches, size = x.shape
        q, k, v = self.qkv(x).view(images, patches, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).reshape(images, patches, size))


class VisionMLP(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        size = config.vision_hidden
        self.norm1, self.norm2 = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)
        self.attn = VisionAttention(size, config.vision_heads)
        self.mlp = VisionMLP(size, config.vision_intermediate)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), cos, sin, mask)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Joins MERGE x MERGE patches into one visual token; deepstack ones norm after joining."""

    def __init__(self, config: Config, norm_after: bool) -> None:
        super().__init__()
        self.size, self.norm_after = config.vision_hidden * MERGE**2, norm_after
        self.norm = nn.LayerNorm(self.size if norm_after else config.vision_hidden, eps=1e-6)
        self.linear_fc1, self.linear_fc2 = (
            nn.Linear(self.size, self.size),
            nn.Linear(self.size, config.hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = (
            self.norm(x.reshape(-1, self.size))
            if self.norm_after
            else self.norm(x).reshape(-1, self.size)
        )
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class PatchEmbed(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        window = (TEMPORAL, PATCH, PATCH)
        self.proj = nn.Conv3d(3, config.vision_hidden, window, window)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.proj.weight.flatten(1), self.proj.bias)


class Vision(nn.Module):
    """Vision tower: [images, patches, PATCH_VALUES] to [images * patches / 4, hidden]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.deepstack = config.deepstack
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = nn.Embedding(POSITION_GRID**2, config.vision_hidden)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.vision_depth))
        self.merger = Merger(config, norm_after=False)
        self.deepstack_merger_list = nn.ModuleList(
            Merger(config, norm_after=True) for _ in config.deepstack
        )
        tables = grid_tables(config.vision_hidden // config.vision_heads)
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, patches: Tensor, grid: Tensor) -> tuple[Tensor, list[Tensor]]:
        count, which = patches.shape[1], self.grid_id[grid[:, 0], grid[:, 1]]
        x = self.patch_embed(patches)
        x = x + (
            self.pos_embed(self.corner[which, :count]) * self.share[which, :count][..., None]
        ).sum(2)
        cos, sin = self.cos[which, :count][:, None], self.sin[which, :count][:, None]
        mask = self.valid[which, :count][:, None, None]
        deep = []
        for index, block in enumerate(self.blocks):
            x = block(x, cos, sin, mask)
            if index in self.deepstack:
                deep.append(self.deepstack_merger_list[self.deepstack.index(index)](x))
        return self.merger(x), deep


def grid_tables(head_dim: int) -> dict[str, Tensor]:
    """Tabulate positions of every grid of patches: rotary angles and learned-position corners."""
    side = MAX_PATCHES // MERGE
    grids = [
        (r, c) for r in range(2, side + 1, 2) for c in range(2, side + 1, 2) if r * c <= MAX_PATCHES
    ]
    grid_id = torch.zeros(side + 1, side + 1, dtype=torch.long)
    angle = torch.zeros(len(grids), MAX_PATCHES, head_dim // 2)
    corner = torch.zeros(len(grids), MAX_PATCHES, 4, dtype=torch.long)
    share = torch.zeros(len(grids), MAX_PATCHES, 4)
    valid = torch.zeros(len(grids), MAX_PATCHES, dtype=torch.bool)
    speeds = 1.0 / 10_000.0 ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2))
    for index, (rows, cols) in enumerate(grids):
        grid_id[rows, cols] = index
        size, (row, col) = rows * cols, merge_order(rows, cols)
        angle[index, :size] = torch.cat([row[:, None] * speeds, col[:, None] * speeds], -1)
        y = torch.linspace(0, POSITION_GRID - 1, rows)[row]
        x = torch.linspace(0, POSITION_GRID - 1, cols)[col]
        y0, x0 = y.long(), x.long()
        y1, x1 = (y0 + 1).clamp(max=POSITION_GRID - 1), (x0 + 1).clamp(max=POSITION_GRID - 1)
        dy, dx = y - y0, x - x0
        corner[index, :size] = torch.stack(
            [
                y0 * POSITION_GRID + x0,
                y0 * POSITION_GRID + x1,
                y1 * POSITION_GRID + x0,
                y1 * POSITION_GRID + x1,
            ],
            -1,
        )
        share[index, :size] = torch.stack(
            [(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx], -1
        )
        valid[index, :size] = True
    angle = torch.cat([angle, angle], -1)
    return {
        "grid_id": grid_id,
        "cos": angle.cos(),
        "sin": angle.sin(),
        "corner": corner,
        "share": share,
        "valid": valid,
    }


def merge_order(rows: int, cols: int) -> tuple[Tensor, Tensor]:
    """Return row and column of each patch in the processor's order (block by merged block)."""
    shape = (rows // MERGE, cols // MERGE, MERGE, MERGE)
    row = torch.arange(rows).view(rows // MERGE, 1, MERGE, 1).expand(shape)
    col = torch.arange(cols).view(1, cols // MERGE, 1, MERGE).expand(shape)
    return row.reshape(-1), col.reshape(-1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim, self.groups = config.head_dim, config.heads // config.kv_heads
        wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, wide, bias=False)
        self.k_proj = nn.Linear(config.hidden, narrow, bias=False)
        self.v_proj = nn.Linear(config.hidden, narrow, bias=False)
        self.o_proj = nn.Linear(wide, config.hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(config.head_dim), RMSNorm(config.head_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.head_dim)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), cos, sin).to(v.dtype)
        k = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), cos, sin).to(v.dtype)
        k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(config.hidden),
            RMSNorm(config.hidden),
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Language(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden)
        half = config.head_dim // 2
        axis = torch.zeros(half, dtype=torch.long)
        for which in (1, 2):  # rows and columns take every third frequency, time the rest
            axis[which : config.mrope[which] * 3 : 3] = which
        self.register_buffer("axis", axis, persistent=False)
        self.register_buffer(
            "speeds", config.rope_theta ** (-torch.arange(half).float() / half), persistent=False
        )

    def rotary(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Turn positions [3, batch, length] into cos and sin, [batch, 1, length, head_dim]."""
        angle = pos.permute(1, 2, 0)[..., self.axis].float() * self.speeds
        angle = torch.cat([angle, angle], -1)[:, None]
        return angle.cos(), angle.sin()


class Core(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.visual, self.language_model = Vision(config), Language(config)


class TinyQwen3VL(nn.Module):
    """The whole model; the output layer shares the token embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Core(config)
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                if name.endswith("bias"):
                    nn.init.zeros_(weight)
                continue
            nn.init.normal_(
                weight,
                std=0.02
                if "embed_tokens" in name or "pos_embed" in name
                else 1 / math.sqrt(weight[0].numel()),
            )
            if name.endswith(
                ("o_proj.weight", "down_proj.weight", "attn.proj.weight", "mlp.linear_fc2.weight")
            ):
                weight.data.mul_(0.5)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the logits [targets, vocabulary] at the batch's `target_at` positions."""
        text = self.model.language_model
        x = text.embed_tokens(batch["ids"])
        rows, length, size = x.shape
        deep: list[Tensor] = []
        if "patches" in batch:
            features, deep = self.model.visual(batch["patches"], batch["grid"])
            x = (
                x.reshape(-1, size)
                .index_copy(0, batch["token_at"], features[batch["feature_at"]].to(x.dtype))
                .view(rows, length, size)
            )
        cos, sin = text.rotary(batch["pos"])
        for index, layer in enumerate(text.layers):
            x = layer(x, cos, sin)
            if index < len(deep):
                x = (
                    x.reshape(-1, size)
                    .index_add(0, batch["token_at"], deep[index][batch["feature_at"]].to(x.dtype))
                    .view(rows, length, size)
                )
        x = text.norm(x.reshape(-1, size).index_select(0, batch["target_at"]))
        return F.linear(x, text.embed_tokens.weight)


assert PATCH_VALUES == 3 * TEMPORAL * PATCH**2
