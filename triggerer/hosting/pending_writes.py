"""Streams that wait until what they had written under the same lease is durable, or refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol


class Writer(Protocol):
    """Stores for the watchers of streams where they stand, or what they miss."""

    def is_writing(self, stream_digest: str) -> bool:
        """Whether changes of a stream were submitted, and it is not known yet what became of them."""

    async def wait_until_written(self, stream_digests: Collection[str]) -> None:
        """Wait until all is answered that was submitted of these streams."""


class Unwritten:
    """An instance whose lease was over by its own clock alone starts its streams again under the same lease.

    What they had submitted before may be written only after they were read, and nobody would know of it. So they start
    once it is answered. Nor is a lease given back before that: what is written after it is refused, so the next owner
    would do the same once more.
    """

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = writers
        self._streams: set[str] = set()

    def look(self, idle: Iterable[str]) -> None:
        """Find out which of these streams, which do not run, are to wait; before what is stored of them is read."""
        self._streams = {digest for digest in idle if self.has([digest])}

    def has(self, stream_digests: Collection[str]) -> bool:
        """Whether something that was submitted of these streams is not answered yet."""
        return any(one.is_writing(digest) for one in self._writers for digest in stream_digests)

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __contains__(self, stream_digest: str) -> bool:
        return stream_digest in self._streams

    async def wait(self) -> None:
        """Return when none of them has to wait any more."""
        await self.wait_for(self._streams)

    async def wait_for(self, stream_digests: Collection[str]) -> None:
        """Return when all is answered that was submitted of these streams."""
        for writer in self._writers:
            await writer.wait_until_written(stream_digests)
