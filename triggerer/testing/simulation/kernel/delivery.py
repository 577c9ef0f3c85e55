"""Messages, and what became of each delivery of one: values that the models fill in and the checker reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from triggerer.domain.watchers.parked import ParkedState

if TYPE_CHECKING:
    from datetime import datetime

    from triggerer.domain.events import Fence
    from triggerer.domain.watchers.lane_positions import Position, Reemission
    from triggerer.streams.delivery.subscriber import Subscriber


_AGAIN: Final = "#"
"""Comes before what a key has where events are made again."""


@dataclass(frozen=True, slots=True)
class Message:
    """A published message, which the broker keeps for ever."""

    topic: str
    lane: int
    offset: int
    event: Any
    size_bytes: int

    @property
    def key(self) -> str:
        return f"{self.topic}/{self.lane}/{self.offset}"


class LaneOfBroker(Protocol):
    """A lane as the broker has it."""

    messages: list[Message]
    position: int
    starts: list[int]
    """Where each incarnation begins; what lies before the last is gone."""

    numbers: list[int]
    """By offset the number of each message in its incarnation: some hold no message."""

    def incarnation_of(self, offset: int) -> int: ...

    def number_of(self, offset: int) -> int: ...

    def find(self, start: datetime) -> int: ...


def position_in(lane: LaneOfBroker, topic: str, offset: int) -> Position:
    """How a producer tells a place of the lane: each incarnation begins with 0."""
    incarnation = lane.incarnation_of(offset)
    return [f"{topic}+{incarnation}", lane.number_of(offset)]


def offset_of(lane: LaneOfBroker, position: Position) -> int:
    """The offset that such a place means: of the message there, or else of the first after it."""
    _, text = position[0].rsplit("+", 1)
    incarnation = int(text)
    ends = [*lane.starts[1:], len(lane.messages)]
    return bisect_left(lane.numbers, position[1], lane.starts[incarnation], ends[incarnation])


@dataclass(frozen=True, slots=True)
class Reread:
    """A message that was read again beside the stream; the producer's broker payload."""

    message: Message


@dataclass(frozen=True, slots=True)
class PositionRow:
    """Where a watcher stands in a lane in which it is behind."""

    topic: str
    """Also the digest of the stream."""
    lane: int
    offset: int
    position: Position
    since: datetime
    failures: int = 0
    """How often it has failed with that message open."""
    reemit: Reemission | None = None
    """What it makes again, if somebody has asked for that."""
    rewound_to: Position | None = None
    """To where it was set back, while the broker is perhaps not advanced to there."""


def plain_key(key: str) -> str:
    """The key of the message itself, where its events are made again under another."""
    return key.partition(_AGAIN)[0]


class ParkedBody(NamedTuple):
    """The bytes of a parked message."""

    digest: str
    """Of its stream."""
    key: str
    """Under which it is parked."""
    data: str
    """Its own key: what it is stored as."""


def size_of_bodies(bodies: Iterable[ParkedBody]) -> int:
    """How many bytes they have."""
    return sum(len(body.data) for body in bodies)


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A message of a watcher."""

    id: int
    watcher: int
    body: ParkedBody
    lane: str
    key: str
    state: str
    failures: int
    parked_at: datetime
    was_set_aside: bool = False
    """Whether it is, or was, set aside: then it is kept because somebody replays it."""

    @property
    def message(self) -> str:
        """The key of the message itself."""
        return self.body.data

    @property
    def is_reemitted(self) -> bool:
        """Whether what derives from it is to be made again, under another key."""
        return _AGAIN in self.key

    @property
    def is_stored(self) -> bool:
        return self.state == ParkedState.KEPT.value


class ParkedBounds(Protocol):
    """What may be parked."""

    @property
    def max_messages(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...

    @property
    def total_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """How a watcher's filter answered one delivery."""

    yielded: int
    is_rejected: bool


class Owner(Protocol):
    """Whose connection it is: a stream in one instance, under one lease."""

    @property
    def fence(self) -> Fence: ...

    @property
    def is_alive(self) -> bool:
        """Whether its process is alive."""

    @property
    def is_over(self) -> bool:
        """Whether its instance knows that the lease is over."""


class Cohort(NamedTuple):
    """The watchers that have to answer for a message when it is broadcast."""

    watchers: dict[int, Subscriber | None]
    """None for one that is absent."""
    triggers: tuple[frozenset[int], ...]
    """The watchers that each trigger serves: it answers once for all of them."""


class Consumer:
    """A connection to a broker: the part of it that deliveries refer to."""

    def __init__(self, owner: Owner, number: int) -> None:
        self.owner = owner
        self.number = number
        self.duplicated: set[tuple[int, int]] = set()
        """Lane and offset of the messages that the broker delivers twice of its own accord."""

    @property
    def is_alive(self) -> bool:
        return self.owner.is_alive


def _ignore(_: Delivery) -> None:
    pass


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery of a message; the producer's broker payload. What follows its generation is for the checker."""

    message: Message
    consumer: Consumer
    generation: int
    number: int = -1
    """Its place in the group's order of broadcasts."""
    cohort: dict[int, Subscriber | None] = field(default_factory=dict)
    """The watchers that had to answer when it was broadcast; None for one that was absent."""
    triggers: tuple[frozenset[int], ...] = ()
    """Of these, those that each trigger served."""
    is_under_lease: bool = True
    """Whether its owner did not know that its lease is over when it was broadcast."""
    confirm_broadcast: Callable[[Delivery], None] = _ignore
    """Call it with proof that it was broadcast."""
    is_broadcast: bool = False
    was_behind_failed: bool = False
    """Whether the poll held it when a message before it in its lane failed for all."""
    opened: set[int] = field(default_factory=set)
    caught_up: set[int] = field(default_factory=set)
    """The watchers that have passed the message beside the group since it was broadcast."""
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def cohort_names(self) -> str:
        """The watchers that had to answer; in parentheses those that were absent."""
        return ",".join(f"{one}" if there else f"({one})" for one, there in self.cohort.items())

    @property
    def is_duplicate(self) -> bool:
        """Whether the broker delivers this message twice of its own accord."""
        return (self.message.lane, self.message.offset) in self.consumer.duplicated
