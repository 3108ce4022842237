"""One connection that sends commands in one write, repeats none, and counts its reconnects.

A client with a pool reconnects in silence. Who must look at the server again after a reconnect
(own pending entries, events whose reply was lost) needs to see it: ``generation`` rises by one
with each new connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, get_args

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mlxq_schemas.scripts import ScriptName, script

Command = tuple[str | bytes | int | float, ...]
"""One Redis command: its name, then its arguments."""

LINK_ERRORS: Final = (RedisConnectionError, RedisTimeoutError, OSError)
"""The connection broke; whether the commands were carried out is unknown."""


class Link:
    """A single connection, for one thread.

    Every method raises one of ``LINK_ERRORS`` if the connection breaks; the next call connects
    again.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self.generation = 0

    def open(self) -> int:
        """Connect if need be; the generation of the connection."""
        if self._connection is None:
            self._connection = self._pool.get_connection()
            self.generation += 1
        return self.generation

    def call(self, *commands: Command) -> list[Any]:
        """Send commands in one write; their replies, where a refused command's is its error.

        A script that the server does not know is loaded, and only its commands are sent again.
        """
        replies = self._exchange(commands)
        missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            sources = {_source(str(commands[i][1])) for i in missing}
            loads: list[Command] = [("SCRIPT", "LOAD", source) for source in sources]
            again = self._exchange([*loads, *(commands[i] for i in missing)])
            for i, reply in zip(missing, again[len(loads) :], strict=True):
                replies[i] = reply
        return replies

    def one(self, *command: str | bytes | float) -> Any:
        """Send one command; its reply. Raises the server's error."""
        reply = self.call(command)[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        self.open()
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            return [self._read() for _ in commands]
        except BaseException:
            # Also for an interrupt: replies that nobody read would answer the next commands.
            self.close()
            raise

    def _read(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error


def run_script(
    name: ScriptName, keys: Sequence[str], args: Sequence[str | bytes | float]
) -> Command:
    """The command that runs one of the contract's scripts."""
    return ("EVALSHA", _sha(name), len(keys), *keys, *args)


@cache
def _sha(name: ScriptName) -> str:
    return hashlib.sha1(script(name).encode(), usedforsecurity=False).hexdigest()


def _source(sha: str) -> str:
    names: tuple[ScriptName, ...] = get_args(ScriptName)
    return next(script(name) for name in names if _sha(name) == sha)
