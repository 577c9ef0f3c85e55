"""Decides which streams an instance claims, and which it gives up, so that every stream finds room. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triggerer.domain.events import Fence
from triggerer.store.watchers.hosting import StreamLoad


@dataclass(frozen=True, slots=True)
class StreamDivision:
    """The decision of one instance. Every other instance makes its own decision, from the same rows."""

    release: tuple[Fence, ...]
    """The leases that the instance should give up."""
    claim: int
    """How many streams the instance may claim to reach its share."""
    free: Mapping[str, int]
    """The free streams that may be opened, by digest, with the number of their triggers."""
    beyond: frozenset[str]
    """The free streams that no other instance would claim. This instance may claim them, even beyond its share."""
    room: int
    """How many further triggers the instance may host."""
    room_elsewhere: int
    """The largest number of further triggers that any other instance may host."""

    def waiting(self, claimed: Iterable[str]) -> dict[str, int]:
        """Return the free streams for which no instance has room, with the number of their triggers.

        Args:
            claimed: The free streams that this instance has claimed.
        """
        ours = set(claimed)
        room = max(self.room - sum(self.free[digest] for digest in ours), self.room_elsewhere)
        return {d: size for d, size in self.free.items() if d not in ours and size > room}


@dataclass(slots=True)
class _Other:
    streams: int = 0
    triggers: int = 0


def _outgrows(size: int, room: int) -> bool:
    return size > room


def divide(
    streams: Sequence[StreamLoad],
    *,
    me: str,
    instances: Collection[str],
    owned: Sequence[Fence],
    capacity: int,
) -> StreamDivision:
    """Divide the streams among the instances: equal numbers of streams, as far as the instances have room for triggers.

    The share of an instance is the number of streams divided by the number of instances, rounded up. An instance gives
    up a stream beyond its share only if an instance below the share has room for the stream. An instance always gives
    up the streams that do not fit into its capacity.

    Args:
        streams: All streams.
        instances: The living instances, including `me`.
        owned: The leases of `me`. The first ones are given up last.
        capacity: The most triggers of one instance, equal for all.
    """
    share = -(-len(streams) // max(len(instances), 1))
    sizes = {stream.digest: stream.triggers for stream in streams}
    mine = {fence.stream_digest for fence in owned}
    others = {instance: _Other() for instance in instances if instance != me}
    for stream in streams:
        if stream.owner in others:
            others[stream.owner].streams += 1
            others[stream.owner].triggers += stream.triggers

    def taker_of(size: int) -> _Other | None:
        able = (o for o in others.values() if o.streams < share and o.triggers + size <= capacity)
        return next(able, None)

    kept = 0
    room = capacity
    release: list[Fence] = []
    for fence in owned:
        size = sizes.get(fence.stream_digest, 0)
        taker = taker_of(size) if kept >= share else None
        if _outgrows(size, room) or taker is not None:
            release.append(fence)
            if taker is not None:
                taker.streams += 1
                taker.triggers += size
        else:
            kept += 1
            room -= size
    free = {
        s.digest: s.triggers
        for s in streams
        if s.owner is None and s.may_open and s.digest not in mine
    }
    return StreamDivision(
        release=tuple(release),
        claim=max(share - kept, 0),
        free=free,
        beyond=frozenset(digest for digest, size in free.items() if taker_of(size) is None),
        room=room,
        room_elsewhere=max((capacity - other.triggers for other in others.values()), default=0),
    )
