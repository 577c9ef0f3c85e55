"""Where a watcher stands in a lane of a log in which it has fallen behind (contract, rule 18)."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from triggerer.domain.events import Fence

Position = list[Any]
"""`[incarnation, number]`, as `SharedStreamProducer.get_position` gives it."""


class Reemission(NamedTuple):
    """Messages of a lane whose events are made again, under keys of their own."""

    request: int
    """The replay's id: what tells the keys from others."""
    start: Position
    until: Position
    """The lane's end when the watcher was set back: what came later has its ordinary key."""

    def key_of(self, position: Position, key: str | None) -> str | None:
        """The idempotency key of the events of the message at `position`, whose ordinary key is `key`."""
        if key is None or is_before(position, self.start) or not is_before(position, self.until):
            return key
        return f"{key}#r{self.request}"


class LanePosition(NamedTuple):
    """A row: the first message of the lane that the watcher has not dealt with, and since when it is behind."""

    watcher_id: int
    lane: str
    """See `encode_lane`."""
    position: Position
    since: datetime
    failures: int = 0
    """How often it has failed with that message open."""
    reemit: Reemission | None = None
    rewound_to: Position | None = None
    """As in `PositionChange`."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Somebody asks to have a watcher read its log again."""

    id: int
    """Grows with every request."""
    watcher_id: int
    start: datetime | None
    """From the first message on that was published then or later. None: from the earliest."""
    reemit: bool
    """Whether events that exist are made once more."""


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """A request that was carried out or refused: its row goes, under the lease of the stream."""

    fence: Fence
    watcher_id: int
    request: int
    on_done: Callable[[Exception | None], None]
    """As `PositionChange.on_done`."""


@dataclass(frozen=True, slots=True)
class PositionChange:
    """What is to be stored of a watcher's place in a lane, under the lease of its stream."""

    fence: Fence
    watcher_id: int
    lane: str
    position: Position | None
    """None: it has caught up, and the row goes."""
    since: datetime
    head: int | None
    """The number of the next message that the lane will get, where it is known."""
    failures: int
    """How often it has failed with the message at `position` open."""
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: None when it is durable. Must not raise."""
    reemit: Reemission | None = None
    rewound_to: Position | None = None
    """To where it was set back, until the broker was advanced to there: what is broadcast may lie before."""


class PositionSink(Protocol):
    """Where the runtime has positions stored."""

    def submit_nowait(self, change: PositionChange) -> None:
        """Take a change for the next transaction. Those of one watcher and lane are stored in this order."""

    def end_replay_nowait(self, end: ReplayEnd) -> None:
        """Take the end of a request for the next transaction."""


def encode_lane(lane: Hashable) -> str | None:
    """Write a lane as canonical JSON; None if it does not come back equal, or no database takes it."""
    try:
        text = json.dumps(lane, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        # Half a character is a string to Python, and to nobody else.
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return (
        text if "\0" not in text and "\\u0000" not in text and decode_lane(text) == lane else None
    )


def decode_lane(text: str) -> Hashable:
    """The lane again: lists come back as tuples."""
    return _as_tuples(json.loads(text))


def _as_tuples(value: Any) -> Hashable:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def is_same_log(one: Position, other: Position) -> bool:
    """Whether the two can be compared: they are of one incarnation of the lane, as far as that is known."""
    return one[0] == other[0] or None in (one[0], other[0])


def is_before(one: Position, other: Position) -> bool:
    """Whether `one` lies before `other` in the same incarnation of the lane."""
    return is_same_log(one, other) and bool(one[1] < other[1])


def following(position: Position) -> Position:
    """The position after a message's, whether there is a message or not."""
    return [position[0], position[1] + 1]


class UsedNumbers(Protocol):
    """Numbers that a log uses again since its end was lost: from the cut, at `since`, up to `below`."""

    @property
    def since(self) -> Any: ...
    @property
    def below(self) -> Any: ...


def cuts_known(incarnation: Any) -> tuple[UsedNumbers, ...]:
    """The cuts of a log of which an incarnation tells.

    A log that is cut keeps its incarnation, so that its positions still compare. What a producer gives as one may say
    in an attribute `used` which cuts were known by then. Out of the store it comes without.
    """
    used: tuple[UsedNumbers, ...] = getattr(incarnation, "used", ())
    return used


def cut_after(place: Position, incarnation: Any) -> Position | None:
    """Return the first cut that `incarnation` tells of, and `place` does not; None: there is none.

    Who stands there may have read, or be about to read, what the log has lost.
    """
    return _first(_unknown_at(place, incarnation), incarnation)


def cut_before(place: Position, incarnation: Any) -> Position | None:
    """The same, of the cuts before `place`, or there: nothing that is there now was read from the cut on."""
    cuts = [one for one in _unknown_at(place, incarnation) if one.since <= place[1]]
    return _first(cuts, incarnation)


def _unknown_at(place: Position, incarnation: Any) -> list[UsedNumbers]:
    used = cuts_known(incarnation)
    if not used or not is_same_log(place, [incarnation]):
        return []
    known = cuts_known(place[0])
    return [one for one in used if place[1] < one.below and one not in known]


def _first(cuts: list[UsedNumbers], incarnation: Any) -> Position | None:
    return [incarnation, min(one.since for one in cuts)] if cuts else None
