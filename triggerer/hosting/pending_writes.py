"""Delays a stream until the changes that it submitted under the same lease are durable, or refused."""

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
    """The streams that wait for the store's answers before they start again under the same lease.

    An instance whose lease is over by its own clock stops its streams, and may extend the lease afterwards. A change
    that the streams submitted before may be written late. Streams that started again earlier would read rows without
    this change. An instance that releases a lease waits for the answers too. Otherwise the store would refuse the late
    write, and the next owner would repeat the work.
    """

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = writers
        self._streams: set[str] = set()

    def look(self, idle: Iterable[str]) -> None:
        """Find out which of these idle streams must wait. Call it before their rows are read."""
        self._streams = {digest for digest in idle if self.has([digest])}

    def has(self, stream_digests: Collection[str]) -> bool:
        """Return whether a change of these streams still waits for the store's answer."""
        return any(one.is_writing(digest) for one in self._writers for digest in stream_digests)

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __contains__(self, stream_digest: str) -> bool:
        return stream_digest in self._streams

    async def wait(self) -> None:
        """Wait until no stream has to wait."""
        await self.wait_for(self._streams)

    async def wait_for(self, stream_digests: Collection[str]) -> None:
        """Wait until the store has answered all changes of these streams.

        The answer of one writer may submit a change to another writer, so all writers are asked again.
        """
        while self.has(stream_digests):
            for writer in self._writers:
                await writer.wait_until_written(stream_digests)
