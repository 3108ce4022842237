"""Train the model from nothing for a given time.

usage: python train.py build/tokenizer build/main --seconds 520
       python train.py build/tokenizer build/deepstack --seconds 330 --deepstack 0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from encode import Batch, Encoder, collate
from model import Config, TinyQwen3VL
from optim import MuonAdamW
from tasks import TESTS, sample
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WARM_UP = 100  # steps
AVERAGE_FROM = 0.8  # share of the time after which weights are averaged
Samples = tuple[int, int, int]  # short, middle and long samples a step


class Stream(IterableDataset):
    """Endless batches: the short, the middle and the long samples of a step apart."""

    def __init__(self, tokenizer: Path, seed: int, samples: Samples) -> None:
        self.tokenizer, self.seed, self.samples = tokenizer, seed, samples

    def __iter__(self) -> Iterator[list[Batch]]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        rng = random.Random(self.seed * 1000 + (worker.id if worker else 0))
        encode = Encoder(self.tokenizer)
        short, middle, long = self.samples
        while True:
            items = sorted(
                (encode(sample(rng)) for _ in range(short + middle)), key=lambda item: len(item.ids)
            )
            groups = [
                items[:short],
                items[short:],
                [encode(sample(rng, long=True)) for _ in range(long)],
            ]
            yield [collate(group) for group in groups if group]


def tensors(batches: list[Batch]) -> list[dict[str, Tensor]]:
    """Turn the arrays of a step into tensors."""
    return [{key: torch.from_numpy(value) for key, value in batch.items()} for batch in batches]


def loader(args: argparse.Namespace) -> Iterator[list[dict[str, Tensor]]]:
    """Start the data workers."""
    stream = Stream(args.tokenizer, args.seed, tuple(args.samples))
    # Tensors travel through shared memory, which some machines keep very small.
    roomy = shutil.disk_usage("/dev/shm").total > 4 * 2**30
    through = tensors if roomy else list
    ready = DataLoader(
        stream,
        batch_size=None,
        num_workers=args.workers,
        prefetch_factor=4 if args.workers else None,
        collate_fn=through,
        pin_memory=roomy and torch.cuda.is_available(),
    )
    return iter(ready) if roomy else map(tensors, ready)


def to_device(batch: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """Move a batch and turn its pixels into patches [images, patches, values] in -1..1."""
    out = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
    if "stills" in out:
        pixels = out.pop("stills").expand(-1, -1, -1, 2, -1).contiguous()
        clips, moving = out.pop("clips"), out.pop("moving")
        if moving.numel():
            pixels[moving] = clips
        out["patches"] = pixels.flatten(2).float() / 127.5 - 1
    return out


def autocast(device: str) -> torch.autocast:
    """Compute in bfloat16 on a GPU."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def train_step(
    model: TinyQwen3VL, batches: list[dict[str, Tensor]], device: str
) -> tuple[Tensor, Tensor]:
    """Add up the gradients of a step; returns its loss and its share of right tokens."""
    total = sum(float(batch["weight"].sum()) for batch in batches)
    count = sum(len(batch["target"]) for batch in batches)
    loss_sum, right = torch.zeros((), device=device), torch.zeros((), device=device)
    for batch in batches:
        moved = to_device(batch, device)
        with autocast(device):
            logits = model(moved)
        losses = F.cross_entropy(logits.float(), moved["target"], reduction="none")
        loss = (losses * moved["weight"]).sum() / total
        loss.backward()
        loss_sum += loss.detach()
        right += (logits.detach().argmax(-1) == moved["target"]).sum()
    return loss_sum, right / count


@torch.no_grad()
def evaluate(
    model: TinyQwen3VL, tokenizer: Path, device: str, count: int, seed: int = 99
) -> dict[str, float]:
    """Return the share of held-out samples of each task whose every token is predicted (teacher-forced)."""
    encode, scores = Encoder(tokenizer), {}
    for name, make in TESTS.items():
        rng = random.Random(f"{seed}-{name}")
        items = [encode(make(rng, "test")) for _ in range(count)]
        batch = to_device(tensors([collate(items)])[0], device)
        with autocast(device):
            wrong = model(batch).argmax(-1) != batch["target"]
        rows = torch.zeros(count, device=device).index_add_(0, batch["target_row"], wrong.float())
        scores[name] = round((rows == 0).float().mean().item(), 4)
    return scores


def save(model: TinyQwen3VL, config: Config, path: Path) -> None:
    """Write a checkpoint."""
    torch.save({"model": model.state_dict(), "config": asdict(config)}, path)


def train(args: argparse.Namespace, device: str) -> None:
    """Run the schedule: warm-up, a constant stretch, linear decay; average the tail."""
    torch.manual_seed(args.seed)
    config = Config(deepstack=tuple(args.deepstack))
    model = TinyQwen3VL(config).to(device)
    if args.init:
        model.load_state_dict(torch.load(args.init, map_location=device)["model"])
    print(config, f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    optimizer = MuonAdamW(model, args.muon_lr, args.adam_lr, args.weight_decay)
    data = loader(args)
    batches = next(data)
    average: list[Tensor] | None = None
    start = last = time.monotonic()
    step, waited, done = 0, 0.0, 0.0
    while done < 1:
        done = (time.monotonic() - start) / args.seconds
        decay = min(1.0, max(0.0, (1 - done) / args.decay))
        loss, right = train_step(model, batches, device)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step(
            min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * decay), min(0.95, 0.85 + step / 3000)
        )
        if done > AVERAGE_FROM:
            weights = [p.detach() for p in model.parameters()]
            if average is None:
                average = [w.clone() for w in weights]
            torch._foreach_lerp_(average, weights, 0.01)
        step += 1
        if step % args.log_every == 0:
            now = time.monotonic()
            print(
                f"step {step} {now - start:.0f}s loss {loss.item():.4f} right {right.item():.4f} {(now - last) / args.log_every * 1e3:.0f} ms/step waited {waited / (now - start):.2f}",
                flush=True,
            )
            last = now
        if step % args.test_every == 0:
            print(step, evaluate(model, args.tokenizer, device, 100), flush=True)
            save(model, config, args.out / "last.pt")
            last = time.monotonic()
        asked = time.monotonic()
        batches = next(data)
        waited += time.monotonic() - asked
    with torch.no_grad():
        for weight, mean in zip(model.parameters(), average or [], strict=average is not None):
            weight.copy_(mean)
    save(model, config, args.out / "final.pt")
    scores = evaluate(model, args.tokenizer, device, 300)
    report = {
        "steps": step,
        "samples": step * sum(args.samples),
        "seconds": round(time.monotonic() - start),
        "scores": scores,
    }
    print(json.dumps(report), flush=True)
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument(
        "--samples", type=int, nargs=3, default=(600, 160, 40), metavar=("SHORT", "MIDDLE", "LONG")
    )
    parser.add_argument("--deepstack", type=int, nargs="*", default=())
    parser.add_argument("--init", type=Path, help="checkpoint to go on from")
    parser.add_argument("--muon-lr", type=float, default=0.01)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument(
        "--decay", type=float, default=0.45, help="share of the time over which the rate falls"
    )
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=200)
    parser.add_argument("--test-every", type=int, default=2000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    train(args, "cuda" if torch.cuda.is_available() else "cpu")
    os._exit(0)  # the endless workers need no farewell


if __name__ == "__main__":
    main()
