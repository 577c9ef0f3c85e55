"""Which streams an instance takes and gives up, so that all are hosted and nobody hosts too much. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triggerer.domain.events import Fence
from triggerer.store.watchers.hosting import StreamLoad


@dataclass(frozen=True, slots=True)
class Division:
    """What an instance should do now; others decide for themselves, from the same rows."""

    release: tuple[Fence, ...]
    """What it should stop and give up."""
    claim: int
    """How many more streams are its share."""
    free: Mapping[str, int]
    """The free streams that may be opened, with the number of their triggers."""
    beyond: frozenset[str]
    """Those of them that no other instance would take: it may, although it has its share."""
    room: int
    """How many more triggers it may host."""
    room_elsewhere: int
    """The most that any other instance has room for."""

    def waiting(self, claimed: Iterable[str]) -> dict[str, int]:
        """The streams that nobody has room for once `claimed` are taken, with the number of their triggers."""
        in_flight = set(claimed)
        room = max(self.room - sum(self.free[digest] for digest in in_flight), self.room_elsewhere)
        return {d: size for d, size in self.free.items() if d not in in_flight and size > room}


@dataclass(slots=True)
class _Other:
    streams: int = 0
    triggers: int = 0


def _outgrows(size: int, room: int) -> bool:
    """Whether a stream of this size does not fit into the room that is left."""
    return size > room


def divide(
    streams: Sequence[StreamLoad],
    *,
    me: str,
    instances: Collection[str],
    owned: Sequence[Fence],
    capacity: int,
) -> Division:
    """Divide the streams among the instances, evenly by number as far as their triggers fit.

    An instance holds no more than its share, rounded up, and no more triggers than `capacity`. It goes beyond its share
    only where nobody else below theirs has room, and gives up what is beyond it only if somebody has: what would be
    claimed back is not given up. What is more than it may host it gives up in any case.

    Args:
        instances: Those alive; `me` is one of them.
        owned: What `me` holds, in the order in which it is kept.
        capacity: The most triggers of one instance, the same for all.
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
    return Division(
        release=tuple(release),
        claim=max(share - kept, 0),
        free=free,
        beyond=frozenset(digest for digest, size in free.items() if taker_of(size) is None),
        room=room,
        room_elsewhere=max((capacity - other.triggers for other in others.values()), default=0),
    )
