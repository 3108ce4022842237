"""One connection that sends commands in one write, repeats none, and counts its reconnects.

A client with a pool reconnects in silence. Who must look at the server again after a reconnect
(own pending entries, events whose reply was lost) needs to see it: ``generation`` rises by one
with each new connection.

A server, or what stands before it, may close connections that idle. That is found out before
anything is sent, and is no error: nothing was under way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mlxq_schemas.scripts import Command, run_script, script_of, sharded
from mlxq_worker.queue.connection import is_sharded

__all__ = ["LINK_ERRORS", "Command", "Link", "run_script"]

LINK_ERRORS: Final = (RedisConnectionError, RedisTimeoutError, OSError)
"""The connection broke; whether the commands were carried out is unknown."""
IDLE: Final = 0.2
"""Seconds without use after which a connection is looked at before it is used again."""


class Link:
    """A single connection, for one thread.

    Every method raises one of ``LINK_ERRORS`` if the connection breaks; the next call connects
    again.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._sharded = is_sharded(client)
        self._connection: Any = None
        self._used = 0.0
        self.generation = 0

    def open(self) -> int:
        """Connect if need be; the generation of the connection."""
        now = time.monotonic()
        if self._connection is not None and now - self._used > IDLE and self._was_closed():
            self.close()
        if self._connection is None:
            self._connection = self._pool.get_connection()
            self.generation += 1
        self._used = now
        return self.generation

    def call(self, *commands: Command) -> list[Any]:
        """Send commands in one write; their replies, where a refused command's is its error.

        A script that the server does not know is loaded, and only its commands are sent again.
        """
        replies = self._exchange(commands)
        missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            sources = {script_of(commands[i]) for i in missing}
            loads: list[Command] = [("SCRIPT LOAD", source) for source in sources]
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
        sent = map(sharded, commands) if self._sharded else commands
        try:
            self._connection.send_packed_command([packed(sent)])
            replies = [self._read() for _ in commands]
        except BaseException:
            # Also for an interrupt: replies that nobody read would answer the next commands.
            self.close()
            raise
        self._used = time.monotonic()
        return replies

    def _was_closed(self) -> bool:
        """True if the other end has closed the connection, or sent what nobody asked for."""
        try:
            return self._connection.can_read(timeout=0)
        except LINK_ERRORS:
            return True

    def _read(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error


def packed(commands: Iterable[Command]) -> bytes:
    """Commands as the server reads them: arrays of byte strings."""
    parts: list[bytes] = []
    for name, *arguments in commands:
        words = (*str(name).split(), *arguments)  # a name may be two words: SCRIPT LOAD
        parts.append(b"*%d\r\n" % len(words))
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
