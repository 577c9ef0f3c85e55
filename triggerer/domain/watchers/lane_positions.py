"""The position of a watcher that has fallen behind in a lane of a log (contract, rule 18).

A log can be read again from any position. A lane is one ordered part of a log, such as a Kafka partition. A watcher
that misses a message which another watcher has processed falls behind. Then a separate reader reads the lane for this
watcher, until the watcher has caught up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from triggerer.domain.events import Fence

Position = list[Any]
"""`[incarnation, number]`, as `SharedStreamProducer.get_position` returns it."""


class Reemission(NamedTuple):
    """A range of a lane's messages. A replay creates the events of these messages again, under new keys."""

    request: int
    """The replay's id, which makes the new keys unique."""
    start: Position
    until: Position
    """The lane's end when the replay began. Messages at this position or later have their ordinary keys."""

    def key_of(self, position: Position, key: str | None) -> str | None:
        """Return the idempotency key of a message's events: a new key inside the range, otherwise `key`."""
        if key is None or is_before(position, self.start) or not is_before(position, self.until):
            return key
        return f"{key}#r{self.request}"


class LanePosition(NamedTuple):
    """A watcher's position in a lane: the first message that it has not processed, and when it fell behind."""

    watcher_id: int
    lane: str
    """The lane as JSON, see `encode_lane`."""
    position: Position
    since: datetime
    failures: int = 0
    """How many times the watcher failed while it processed the message at `position`."""
    reemit: Reemission | None = None
    rewound_to: Position | None = None
    """See `PositionChange.rewound_to`."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """An operator's request that a watcher reads its log again."""

    id: int
    """Each request has a higher id than the requests before it."""
    watcher_id: int
    start: datetime | None
    """Read from the first message that was published at this instant or later. None: from the earliest message."""
    reemit: bool
    """True to create events again that already exist."""
    is_restore: bool = False
    """True: the database was restored. The stream pulls no message before the request is carried out."""


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """Under the lease of the stream, delete a replay request that was carried out or refused."""

    fence: Fence
    watcher_id: int
    request: int
    on_done: Callable[[Exception | None], None]
    """See `PositionChange.on_done`."""


@dataclass(frozen=True, slots=True)
class PositionChange:
    """A change of a watcher's stored position in a lane, under the lease of its stream."""

    fence: Fence
    watcher_id: int
    lane: str
    position: Position | None
    """The new position. None: the watcher has caught up, and the row is deleted."""
    since: datetime
    log_end: int | None
    """The number that the lane's next message will get. None: unknown."""
    failures: int
    """How many times the watcher failed while it processed the message at `position`."""
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: with None when the change is durable, or with the error. Must not raise."""
    reemit: Reemission | None = None
    rewound_to: Position | None = None
    """The position to which a replay rewound the watcher. None: no replay, or the broker has advanced to the position.

    Until the broker has advanced to this position, it may deliver an even earlier message. The
    watcher is then rewound to the earlier message.
    """


class PositionSink(Protocol):
    """The part of the store to which the streams submit positions."""

    def submit_nowait(self, change: PositionChange) -> None:
        """Add a change to the next transaction. Changes of one watcher and lane are stored in order."""

    def end_replay_nowait(self, end: ReplayEnd) -> None:
        """Add the end of a replay request to the next transaction."""


def encode_lane(lane: Hashable) -> str | None:
    """Return a lane as canonical JSON, or None if the JSON cannot be stored or does not decode to an equal lane."""
    try:
        text = json.dumps(lane, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        # Python accepts half a surrogate pair as a string; databases and brokers do not.
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return (
        text if "\0" not in text and "\\u0000" not in text and decode_lane(text) == lane else None
    )


def decode_lane(text: str) -> Hashable:
    """Return the lane from its JSON. Lists become tuples."""
    return _as_tuples(json.loads(text))


def _as_tuples(value: Any) -> Hashable:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def is_same_log(one: Position, other: Position) -> bool:
    """True if the positions can be compared: their incarnations are equal, or one of them is unknown."""
    return one[0] == other[0] or None in (one[0], other[0])


def is_before(one: Position, other: Position) -> bool:
    """True if the positions can be compared, and `one` is before `other`."""
    return is_same_log(one, other) and bool(one[1] < other[1])


def following(position: Position) -> Position:
    """Return the position directly after a message's position, even if no message is there."""
    return [position[0], position[1] + 1]


class Cut(Protocol):
    """A log lost its newest messages, for instance in a failover, and gives their numbers to new messages.

    The reused numbers begin with `since` and end before `below`.
    """

    @property
    def since(self) -> Any: ...
    @property
    def below(self) -> Any: ...


def cuts_known(incarnation: Any) -> tuple[Cut, ...]:
    """Return the cuts that an incarnation lists in its attribute `used`; empty if it has no such attribute.

    After a cut, a producer gives its messages an incarnation with this attribute, which compares equal to the
    incarnation before the cut. An incarnation from the store lists no cuts.
    """
    used: tuple[Cut, ...] = getattr(incarnation, "used", ())
    return used


def cut_after(position: Position, incarnation: Any) -> Position | None:
    """Return the position of the first cut that may have happened after `position` was recorded; None: no such cut.

    A cut counts if:

    - `incarnation` lists the cut, but the incarnation of `position` does not, and
    - the number of `position` is less than `Cut.below`, where the reused numbers end.
    """
    return _first(_unknown_at(position, incarnation), incarnation)


def cut_before(position: Position, incarnation: Any) -> Position | None:
    """Return the position of the first cut that has removed the message at `position`; None: no such cut.

    Only cuts that count for `cut_after` are considered.
    """
    cuts = [one for one in _unknown_at(position, incarnation) if one.since <= position[1]]
    return _first(cuts, incarnation)


def _unknown_at(position: Position, incarnation: Any) -> list[Cut]:
    used = cuts_known(incarnation)
    if not used or not is_same_log(position, [incarnation]):
        return []
    known = cuts_known(position[0])
    return [one for one in used if position[1] < one.below and one not in known]


def _first(cuts: list[Cut], incarnation: Any) -> Position | None:
    return [incarnation, min(one.since for one in cuts)] if cuts else None
