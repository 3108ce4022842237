"""What a run has done, in one SQLite file, so that the next run does only the rest.

A piece of work (content, prompt, model, sampling) is done once, however many items ask for it. An
item that was written has its row here too: outputs can be made again from the ledger alone.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from mlxq_producer.pipeline.item import Outcome, Row
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.plain import to_json, whole

_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS work (
    key TEXT PRIMARY KEY, outcome TEXT, tries INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    ordinal INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, stamp TEXT,
    seen TEXT, digest TEXT, row TEXT, ok INTEGER, visit TEXT, want TEXT
);
CREATE TABLE IF NOT EXISTS taken (path TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS written (
    path TEXT PRIMARY KEY, digest TEXT NOT NULL, before TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS samples (
    output TEXT, name TEXT, shard INTEGER, key TEXT NOT NULL, live INTEGER NOT NULL,
    PRIMARY KEY (output, name, shard)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS samples_of_shards ON samples (output, shard, live);
"""


@dataclass(frozen=True)
class Known:
    """What the ledger holds of an item: the ``row`` written under ``stamp`` (None: it was begun,
    not written), and the stamp that it was begun for last, ``want``.
    """

    stamp: str | None
    want: str | None
    seen: str | None
    digest: str | None
    row: Row | None


class Ledger:
    """The ledger at ``path``; None keeps it in memory. Each change is committed at once.

    Raises :class:`ConfigError` for a file that is no ledger.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open(":memory:" if path is None else str(path))
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{path} is no ledger of captions ({error}): give another --ledger, or remove it"
            ) from error

    @classmethod
    def look(cls, path: Path | None) -> Self:
        """A copy in memory, for a look that changes nothing."""
        found = cls(None)
        if path is not None and path.exists():
            with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as other:
                other.backup(found._db)
            other.close()
            found._db.executescript(_TABLES)  # those that an older mlxq did not have
        return found

    def _open(self, place: str) -> None:
        # A run and its threads' errors aside, one thread at a time uses it.
        self._db = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_TABLES)
        version = self.get("version")
        if version is None:
            self.set("version", str(_VERSION))
            self.set("run", uuid.uuid4().hex[:12])
        elif version != str(_VERSION):
            raise ConfigError(f"{self.path} is a ledger of another mlxq: remove it, or upgrade")

    @property
    def run(self) -> str:
        """Tells the jobs of this ledger from those of others."""
        return self.get("run") or ""

    def clear(self) -> None:
        """Forget everything."""
        with self._db:
            for table in ("meta", "work", "items", "taken", "written", "samples"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - names from the line above
        self.set("version", str(_VERSION))
        self.set("run", uuid.uuid4().hex[:12])

    def get(self, name: str) -> str | None:
        """A setting of the ledger's own."""
        found = self._one("SELECT value FROM meta WHERE name = ?", name)
        return None if found is None else found[0]

    def set(self, name: str, value: str) -> None:
        """Keep a setting."""
        self._do("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, value)

    def item(self, name: str) -> Known | None:
        """What is known of an item."""
        found = self._one("SELECT stamp, want, seen, digest, row FROM items WHERE name = ?", name)
        if found is None:
            return None
        stamp, want, seen, digest, row = found
        return Known(stamp, want, seen, digest, None if row is None else Row.from_json(row))

    def visit(self, name: str, visit: str) -> bool:
        """Note that a run met an item; True if the same run has met it before."""
        found = self._one("SELECT visit FROM items WHERE name = ?", name)
        if found is not None and found[0] == visit:
            return True
        self._do("UPDATE items SET visit = ? WHERE name = ?", visit, name)
        return False

    def begin(self, name: str, want: str, seen: str | None, digest: str | None, visit: str) -> None:
        """An item is about to be worked on: what stands in its place from now on is ours."""
        self._do(
            "INSERT INTO items (name, want, seen, digest, visit) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET want = excluded.want, seen = excluded.seen, "
            "digest = excluded.digest, visit = excluded.visit",
            *(name, want, seen, digest, visit),
        )

    def write(self, name: str, stamp: str, row: Row, sizes: dict[str, int]) -> None:
        """An item's row is in all outputs, whose files have these sizes in bytes now.

        A row that replaces another leaves the ledger ``dirty``: line files hold both then.
        """
        with self._transaction():
            if self._one("SELECT 1 FROM items WHERE name = ? AND row IS NOT NULL", name):
                self.set("dirty", "1")
            self._do(
                "INSERT INTO items (name, stamp, row, ok) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (name) DO UPDATE SET stamp = excluded.stamp, row = excluded.row, "
                "ok = excluded.ok",
                *(name, stamp, row.as_json(), int(row.ok)),
            )
            for file, size in sizes.items():
                self.set(f"size:{file}", str(size))

    def rows(self) -> Iterator[Row]:
        """All rows, in the order in which their items were first seen."""
        last = 0
        while page := self._db.execute(
            "SELECT ordinal, row FROM items WHERE ordinal > ? AND row IS NOT NULL "
            "ORDER BY ordinal LIMIT 1000",
            (last,),
        ).fetchall():
            last = page[-1][0]
            yield from (Row.from_json(text) for _, text in page)

    def forget_dirty(self) -> None:
        """All line files were made anew."""
        self._do("DELETE FROM meta WHERE name = 'dirty'")

    def outcome(self, key: str) -> Outcome | None:
        """What came of a piece of work."""
        found = self._one("SELECT outcome FROM work WHERE key = ?", key)
        return None if found is None or found[0] is None else Outcome(**json.loads(found[0]))

    def tries(self, key: str) -> int:
        """How often failed work was begun again."""
        found = self._one("SELECT tries FROM work WHERE key = ?", key)
        return 0 if found is None else found[0]

    def try_again(self, key: str) -> int:
        """Begin failed work again; returns how often that was done."""
        self._do(
            "INSERT INTO work VALUES (?, NULL, 1) "
            "ON CONFLICT (key) DO UPDATE SET outcome = NULL, tries = tries + 1",
            key,
        )
        return self.tries(key)

    def settle(self, key: str, outcome: Outcome) -> None:
        """Keep what came of a piece of work."""
        text = to_json(asdict(outcome))
        self._do(
            "INSERT INTO work (key, outcome) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET outcome = excluded.outcome",
            key,
            text,
        )

    def take(self, path: str, name: str) -> str | None:
        """Reserve a file for an item; returns the name of another item that has it."""
        self._do("INSERT OR IGNORE INTO taken VALUES (?, ?)", path, name)
        found = self._one("SELECT name FROM taken WHERE path = ?", path)
        owner = name if found is None else found[0]
        return None if owner == name else owner

    def owner(self, path: str) -> str | None:
        """The item that a file is reserved for."""
        found = self._one("SELECT name FROM taken WHERE path = ?", path)
        return None if found is None else found[0]

    def written(self, path: str) -> set[str]:
        """Digests of what we wrote to a file; two where a kill may have come before the second.

        Empty for a file that is not ours, or that an older mlxq wrote.
        """
        found = self._one("SELECT digest, before FROM written WHERE path = ?", path)
        return set() if found is None else {digest for digest in found if digest is not None}

    def begin_file(self, path: str, digest: str, before: str | None) -> None:
        """A file is about to be replaced whose content has the digest ``before``."""
        self._do("INSERT OR REPLACE INTO written VALUES (?, ?, ?)", path, digest, before)

    def end_file(self, path: str) -> None:
        """It was replaced."""
        self._do("UPDATE written SET before = NULL WHERE path = ?", path)

    def put_sample(self, output: str, name: str, shard: int, key: str) -> None:
        """An item's sample is in a shard now; one that it had before is retired."""
        with self._transaction():
            self.retire_sample(output, name)
            self._do(
                "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, 1)", output, name, shard, key
            )

    def retire_sample(self, output: str, name: str) -> None:
        """An item's sample is to be taken out of its shard."""
        self._do("UPDATE samples SET live = 0 WHERE output = ? AND name = ?", output, name)

    def has_sample(self, output: str, name: str) -> bool:
        """True if a shard has an item's sample, one that is not retired."""
        sql = "SELECT 1 FROM samples WHERE output = ? AND name = ? AND live = 1"
        return self._one(sql, output, name) is not None

    def shards(self, output: str, *, retired: bool = False) -> set[int]:
        """The shards that have samples; with ``retired``, that have retired ones."""
        sql = "SELECT DISTINCT shard FROM samples WHERE output = ? AND live <= ?"
        return {row[0] for row in self._db.execute(sql, _storable([output, int(not retired)]))}

    def retired_keys(self, output: str, shard: int) -> set[str]:
        """The keys of a shard's retired samples."""
        sql = "SELECT key FROM samples WHERE output = ? AND shard = ? AND live = 0"
        return {row[0] for row in self._db.execute(sql, _storable([output, shard]))}

    def forget_samples(self, output: str, shard: int, *, retired: bool = False) -> None:
        """A shard is gone, or (``retired``) its retired samples are."""
        sql = "DELETE FROM samples WHERE output = ? AND shard = ? AND live <= ?"
        self._do(sql, output, shard, int(not retired))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _transaction(self) -> sqlite3.Connection:
        self._db.execute("BEGIN")
        return self._db

    def _one(self, sql: str, *values: Any) -> Any:
        return self._db.execute(sql, _storable(values)).fetchone()

    def _do(self, sql: str, *values: Any) -> None:
        self._db.execute(sql, _storable(values))


def _storable(values: Sequence[Any]) -> list[Any]:
    """Outputs have names of any bytes; the database takes whole text only."""
    return [whole(value) if isinstance(value, str) else value for value in values]
