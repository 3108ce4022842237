"""What a run is asked to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mlxq_producer.media import read_media
from mlxq_producer.pipeline.item import Item, printable
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.locks import STATE_FOLDER, Locks, state_path
from mlxq_producer.pipeline.output import Existing, Sink
from mlxq_producer.pipeline.post import Post
from mlxq_producer.pipeline.shards import SHARD_ITEMS, Shards
from mlxq_producer.pipeline.sidecars import Kind, Sidecars
from mlxq_producer.pipeline.sinks import file_sink
from mlxq_producer.pipeline.sources import Choice, Sources
from mlxq_schemas.errors import ConfigError, MediaError


class Prompt(Protocol):
    """Makes the prompt of an item."""

    def render(self, values: Mapping[str, Any]) -> str:
        """The text; raises :class:`InvalidJob`."""
        ...


@dataclass(frozen=True)
class Plan:
    """A run of captions, as :func:`mlxq_producer.caption` describes it.

    ``window`` is how many items are under way at most; ``tries`` how often a text that does not
    meet the schema is asked for; ``tar_items`` how many items an archive takes at most;
    ``folders`` are those whose files workers read by path, while the bytes of others go through
    the queue (None: the producer decides).
    """

    sources: Sources
    prompt: Prompt
    choice: Choice = field(default_factory=Choice)
    system: str | None = None
    model: str | None = None
    insist: bool = True
    """Whether jobs name ``model``; where the run has its own worker they need not."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    post: Post = field(default_factory=Post)
    tries: int = 3
    outputs: Sequence[Path] = ()
    sidecars: Sequence[Kind] = ()
    out_dir: Path | None = None
    full_names: bool = False
    tar_items: int = SHARD_ITEMS
    existing: Existing = "skip"
    ledger: Path | None = None
    retry_failed: bool = False
    window: int = 64
    ordered: bool = False
    detach: bool = False
    """Whether jobs under way go on when the run is interrupted."""
    folders: Sequence[Path] | None = None

    def check(self) -> None:
        """Raise :class:`ConfigError` for what could never run."""
        self.sources.check()
        self.post.prepare()
        if min(self.window, self.tries, self.tar_items) < 1:
            raise ConfigError("window, tries and tar_items are 1 or more")
        shard = self.choice.shard
        if shard is not None and not 1 <= shard[0] <= shard[1]:
            raise ConfigError(
                f"shard {shard[0]}/{shard[1]}: count shards from 1, as in 1/4 ... 4/4"
            )
        if self.out_dir is not None and not self.sidecars:
            raise ConfigError("--out-dir holds sidecars: say which, as in --sidecar txt")
        if len(set(self.outputs)) != len(self.outputs):
            raise ConfigError("an output is named twice")

    def ledger_path(self) -> Path | None:
        """Where the ledger is: with the sidecars, else with the first output, else in memory.

        One that is there already is preferred, so that an output may be added to a later run.
        """
        if self.ledger is not None:
            return self.ledger
        places = [state_path(path, "sqlite") for path in self.outputs]
        if self.sidecars:
            home = self.out_dir or self.sources.home()
            places.insert(0, home / STATE_FOLDER / f"captions{self._shard_mark()}.sqlite")
        return next((path for path in places if path.exists()), places[0] if places else None)

    def lock(self) -> Locks:
        """Lock all outputs. Raises :class:`OutputInUse`."""
        locks = Locks()
        try:
            if self.sidecars:
                home = self.out_dir or self.sources.home()
                home.mkdir(parents=True, exist_ok=True)
                locks.take(home, shared=self.choice.shard is not None)
            for path in (*self.outputs, self.ledger_path()):
                if path is not None:
                    locks.take(path)
        except BaseException:
            locks.release()
            raise
        return locks

    def sinks(self) -> tuple[Sidecars, list[Sink]]:
        """The sidecars, and all outputs in the order in which they take a row: those that may
        refuse an item, and then take its failed row, before those that only grow. None is open.
        """
        beside = Sidecars(self.sidecars, self.out_dir, full_names=self.full_names)
        files = [file_sink(path, self.tar_items) for path in self.outputs]
        shards = [sink for sink in files if isinstance(sink, Shards)]
        return beside, [*shards, beside, *(s for s in files if not isinstance(s, Shards))]

    def key(self, digest: str, prompt: str) -> str:
        """Equal for items that the model would be asked the same about."""
        schema = None if self.post.schema is None else [self.post.schema, self.tries]
        asked = [digest, prompt, self.system, self.model, dict(self.sampling), schema]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def job(self, item: Item, prompt: str, job_id: str, attempt: int) -> dict[str, Any]:
        """The fields of an item's job; later attempts ask with another seed."""
        sampling = dict(self.sampling)
        if attempt:
            sampling["seed"] = int(sampling.get("seed") or 0) + attempt
            sampling["temperature"] = max(float(sampling.get("temperature") or 0.0), 0.7)
        media = [] if item.media is None else [self._medium(item.media)]
        fields: dict[str, Any] = {"id": job_id, "stream": False, **sampling}
        if self.insist:
            fields["model"] = self.model
        if self.system is None:
            return {**fields, "prompt": prompt, "images": media}
        parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": one} for one in media]
        user = {"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}
        return {**fields, "messages": [{"role": "system", "content": self.system}, user]}

    def _medium(self, media: Path | str | bytes) -> Path | str | bytes:
        """By path where the worker sees it; a name that is no UTF-8 does not travel.

        A file that went away meanwhile is left for the job to fail with.
        """
        if not isinstance(media, Path):
            return media
        try:
            if printable(media) != str(media):
                return read_media(media)
            if self.folders is None:
                return media
            place = media.resolve()
            inside = any(place.is_relative_to(folder) for folder in self.folders)
            return place if inside else read_media(media)
        except (OSError, MediaError):
            return media

    def _shard_mark(self) -> str:
        shard = self.choice.shard
        return "" if shard is None else f"-{shard[0]}of{shard[1]}"


def open_ledger(plan: Plan) -> Ledger:
    """The plan's ledger, emptied where everything is to be done anew.

    An ``overwrite`` that was interrupted goes on instead.
    """
    ledger = Ledger(plan.ledger_path())
    interrupted = ledger.get("mode") == "overwrite" and ledger.get("complete") == "0"
    if plan.existing == "overwrite" and not plan.retry_failed and not interrupted:
        ledger.clear()
    ledger.set("mode", plan.existing)
    ledger.set("complete", "0")
    return ledger
