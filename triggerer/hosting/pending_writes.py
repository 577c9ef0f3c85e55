"""Delays the restart of a stream until all changes that the stream submitted earlier are durable or refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol


class Writer(Protocol):
    """Stores changes that streams submit, such as positions of watchers or parked messages."""

    def is_writing(self, stream_digest: str) -> bool:
        """Return whether a change of this stream still waits for the store's answer."""

    async def wait_until_written(self, stream_digests: Collection[str]) -> None:
        """Wait until the store has answered all changes of these streams."""


class Unwritten:
    """Stopped streams that must not start again yet, because the store has not answered all of their changes.

    A stopped stream reads its rows from the store and starts again when a heartbeat extends the lease. The rows would
    be outdated if a change from before the stop were still under way.

    An instance also waits for these changes before it releases a lease. Otherwise the store would refuse the changes.
    """

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = writers
        self._streams: set[str] = set()

    def refresh(self, idle: Iterable[str]) -> None:
        """Find out which of these stopped streams must wait. Call this method before their rows are read."""
        self._streams = {digest for digest in idle if self.has([digest])}

    def has(self, stream_digests: Collection[str]) -> bool:
        """Return whether a change of these streams still waits for the store's answer."""
        return any(one.is_writing(digest) for one in self._writers for digest in stream_digests)

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __contains__(self, stream_digest: str) -> bool:
        return stream_digest in self._streams

    async def wait(self) -> None:
        """Wait until the store has answered all changes of the streams that must not start yet."""
        await self.wait_for(self._streams)

    async def wait_for(self, stream_digests: Collection[str]) -> None:
        """Wait until the store has answered all changes of these streams.

        After an answer from one writer, another writer may have a new change. So check all writers
        again, until none waits for an answer.
        """
        while self.has(stream_digests):
            for writer in self._writers:
                await writer.wait_until_written(stream_digests)
