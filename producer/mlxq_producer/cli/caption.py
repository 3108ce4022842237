"""``mlxq caption``: many items in, their captions out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxq_producer.cli.caption_run import carry_out
from mlxq_producer.cli.failures import EXIT_JOB_NOT_FINISHED, end_in_order_when_terminated
from mlxq_producer.cli.job_options import check_options
from mlxq_producer.cli.options import Json, Queue, RedisUrl
from mlxq_producer.cli.output import print_json
from mlxq_producer.client import Producer
from mlxq_producer.pipeline.api import MEDIA_TTL
from mlxq_producer.pipeline.pictures import PassedOver
from mlxq_producer.pipeline.plan import Plan, Prompt
from mlxq_producer.pipeline.post import Post
from mlxq_producer.pipeline.preview import preview
from mlxq_producer.pipeline.shards import SHARD_ITEMS
from mlxq_producer.pipeline.sources import Choice, Sources
from mlxq_producer.pipeline.template import Literal, Template
from mlxq_schemas import DEFAULT_QUEUE
from mlxq_schemas.errors import ConfigError, EmptyPrompt
from mlxq_schemas.near import did_you_mean
from mlxq_schemas.usage import typed


class Existing(StrEnum):
    """What becomes of outputs that are there."""

    SKIP = "skip"
    OVERWRITE = "overwrite"
    APPEND = "append"


class Sidecar(StrEnum):
    """Kinds of files beside pictures."""

    TXT = "txt"
    CAPTION = "caption"
    JSON = "json"


def _shard(text: str) -> tuple[int, int]:
    try:
        number, count = map(int, text.split("/"))
    except ValueError as error:
        raise ConfigError(f"--shard {typed(text)}: must be I/N, as in 1/4") from error
    return number, count


def _column(text: str) -> tuple[str, str]:
    role, _, name = text.partition("=")
    if role not in {"image", "id"} or not name:
        meant = did_you_mean(role, ("image", "id"))
        raise ConfigError(f"--column {typed(text)}: must be image=NAME or id=NAME{meant}")
    return role, name


def caption(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Files, folders, quoted patterns, lists (.txt), manifests (.csv .tsv .jsonl "
            ".parquet), webdataset .tar and .tar.gz files, saved datasets, http(s) URLs, or - for "
            "stdin.",
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="What to ask, as it is.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the prompt.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A prompt with {filename}, {stem}, or a row's {fields}."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A .jsonl, .csv or .parquet, or NAME-%06d.tar; may be repeated.",
        ),
    ] = None,
    sidecar: Annotated[
        list[Sidecar] | None,
        typer.Option(case_sensitive=False, help="A file beside each picture; may be repeated."),
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Sidecars go here, in folders like their pictures'."),
    ] = None,
    full_names: Annotated[
        bool, typer.Option("--full-names", help="Sidecars are a.png.txt, not a.txt.")
    ] = False,
    tar_items: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most items in one .tar.")
    ] = SHARD_ITEMS,
    existing: Annotated[
        Existing,
        typer.Option(
            case_sensitive=False,
            help="What becomes of captions that are there; skip keeps edited ones too.",
        ),
    ] = Existing.SKIP,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do what failed in earlier runs, only that.")
    ] = False,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Start a server and a worker for this run.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Model to insist on; with --embedded the folder or hub id to load.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Most new tokens.")] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="0 takes the likeliest token.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(metavar="X", help="Nucleus sampling.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Same seed, same text.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help="A manifest's columns: image=NAME, id=NAME."),
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Manifests may name files in here too."),
    ] = None,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Rows have no pictures: use only their fields.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only the first N items.")
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="In random order.")] = False,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only the I-th of N parts, from 1.")
    ] = None,
    window: Annotated[int, typer.Option(metavar="N", min=1, help="Most jobs in flight.")] = 64,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Write rows in the order of the items.")
    ] = False,
    by_path: Annotated[
        bool, typer.Option("--by-path", help="Workers see the same disk: send paths, not bytes.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="When interrupted, let the jobs under way go on.")
    ] = False,
    no_strip: Annotated[bool, typer.Option("--no-strip", help="Keep blanks around texts.")] = False,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Before each text.")] = "",
    suffix: Annotated[str, typer.Option(metavar="TEXT", help="After each text.")] = "",
    max_length: Annotated[
        int | None, typer.Option(metavar="N", help="Cut texts to N characters.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Keep what this finds of a text.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts must be JSON that meets this.")
    ] = None,
    tries: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --json-schema: ask so often.")
    ] = 3,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to keep what was done.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and end.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: Queue = DEFAULT_QUEUE,
    as_json: Json = False,
) -> None:
    """Caption files, folders, manifests or URLs into sidecars, JSONL, CSV, Parquet or tar.

    Run it again, after any end: only what is missing is done. Exit code 3: some items failed.
    """
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    check_options(sampling)
    plan = Plan(
        sources=Sources(source, _columns(column or []), root or [], _stdin(), text_only),
        prompt=_prompt(prompt, prompt_file, template),
        choice=Choice(None if shard is None else _shard(shard), limit, shuffle, seed or 0),
        system=system,
        model=model,
        sampling={name: value for name, value in sampling.items() if value is not None},
        post=Post(not no_strip, regex, max_length, prefix, suffix, _schema(json_schema)),
        tries=tries,
        outputs=output or [],
        sidecars=[kind.value for kind in dict.fromkeys(sidecar or [])],
        out_dir=out_dir,
        full_names=full_names,
        tar_items=tar_items,
        existing=existing.value,
        ledger=ledger,
        retry_failed=retry_failed,
        window=window,
        ordered=ordered,
        detach=detach,
    )
    if dry_run:
        _show(plan, as_json=as_json)
        return
    if not plan.outputs and not plan.sidecars:
        raise ConfigError("say where captions go: --sidecar txt, or -o captions.jsonl")
    plan.check()
    end_in_order_when_terminated()
    with ExitStack() as stack:
        producer = None
        if not embedded:
            made = Producer(redis_url, queue, inline_media=not by_path, media_ttl=MEDIA_TTL)
            producer = stack.enter_context(made)
        summary = carry_out(plan, producer, embedded=embedded, as_json=as_json)
    if not summary.ok:
        raise typer.Exit(EXIT_JOB_NOT_FINISHED)


def _show(plan: Plan, *, as_json: bool) -> None:
    counts: dict[str, int] = {}
    over = PassedOver()
    for found in preview(plan, over):
        counts[found.action] = counts.get(found.action, 0) + 1
        if found.action in {"caption", "refuse"}:
            if as_json:
                fields = {"source": found.item.name, "prompt": found.prompt}
                print_json({"type": "item", "action": found.action, **fields})
            else:
                print(f"{found.action} {found.item.name}")
    if as_json:
        print_json({"type": "summary", **counts, "passed_over": over})
    else:
        if over:
            print(over.told())
        print(", ".join(f"{number} {action}" for action, number in counts.items()) or "no items")


def _prompt(text: str | None, file: Path | None, template: str | None) -> Prompt:
    if sum(given is not None for given in (text, file, template)) != 1:
        raise ConfigError("give one of --prompt TEXT, --prompt-file FILE, --template TEXT")
    if template is not None:
        return Template(template)
    found = text if file is None else _read(file, "--prompt-file")
    if not (found or "").strip():
        raise EmptyPrompt("the prompt is empty; say what the model should do")
    return Literal(found or "")


def _schema(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        found = json.loads(_read(path, "--json-schema"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"--json-schema {path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"--json-schema {path} holds no JSON object")
    return found


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {option} {path}: {error}") from error


def _columns(given: list[str]) -> dict[str, str]:
    return dict(_column(text) for text in given)


def _stdin() -> Iterable[str]:
    for line in sys.stdin.buffer:
        yield line.decode("utf-8", "surrogateescape")
