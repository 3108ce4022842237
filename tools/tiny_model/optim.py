"""Muon for the weight matrices, AdamW for everything else."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def orthogonalize(grads: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of [count, rows, cols] towards one (Newton-Schulz)."""
    x = grads.bfloat16() if grads.is_cuda else grads
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    return (x.mT if tall else x).float()


class MuonAdamW:
    """Both optimizers behind one `step`; matrices of one shape are updated together."""

    def __init__(
        self, model: nn.Module, muon_lr: float, adam_lr: float, weight_decay: float
    ) -> None:
        self.muon_lr, self.adam_lr, self.weight_decay = muon_lr, adam_lr, weight_decay
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        rest = []
        for name, weight in model.named_parameters():
            if (
                weight.ndim >= 2
                and "embed_tokens" not in name
                and "pos_embed" not in name
                and "patch_embed" not in name
            ):
                self.groups.setdefault((weight.shape[0], weight[0].numel()), []).append(weight)
            else:
                rest.append(weight)
        self.momentum = {
            key: torch.zeros(len(group), *key, device=group[0].device)
            for key, group in self.groups.items()
        }
        self.adam = torch.optim.AdamW(
            rest, lr=adam_lr, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
        )

    @torch.no_grad()
    def step(self, factor: float, momentum: float) -> None:
        """Update every weight at `factor` times the learning rates, and clear the gradients."""
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * factor
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for key, weights in self.groups.items():
            grads = torch.stack(
                [(torch.zeros_like(w) if w.grad is None else w.grad).reshape(key) for w in weights]
            )
            state = self.momentum[key]
            state.lerp_(grads, 1 - momentum)
            update = orthogonalize(grads.lerp(state, momentum)) * (0.2 * max(key) ** 0.5)
            rate = self.muon_lr * factor
            updates = [u.view_as(w) for u, w in zip(update.unbind(0), weights, strict=True)]
            torch._foreach_mul_(weights, 1 - rate * self.weight_decay)
            torch._foreach_add_(weights, updates, alpha=-rate)
            for weight in weights:
                weight.grad = None
