"""Messages, deliveries and rows: values that the models fill in and the checkers read."""

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
"""Separates a message's key from the suffix of re-emitted events."""


@dataclass(frozen=True, slots=True)
class Message:
    """A published message. The model of the broker never deletes it."""

    topic: str
    lane: int
    offset: int
    event: Any
    size_bytes: int

    @property
    def key(self) -> str:
        return f"{self.topic}/{self.lane}/{self.offset}"


class LaneOfBroker(Protocol):
    """A lane in the model of the broker."""

    messages: list[Message]
    position: int
    starts: list[int]
    """The offset at which each incarnation begins. Messages of earlier incarnations are gone."""

    numbers: list[int]
    """The number of each message in its incarnation, by offset. Some numbers have no message."""

    def incarnation_of(self, offset: int) -> int: ...

    def number_of(self, offset: int) -> int: ...

    def find(self, start: datetime) -> int: ...


def position_in(lane: LaneOfBroker, topic: str, offset: int) -> Position:
    """Return the position of an offset, as a producer gives it. Each incarnation begins with the number 0."""
    incarnation = lane.incarnation_of(offset)
    return [f"{topic}+{incarnation}", lane.number_of(offset)]


def offset_of(lane: LaneOfBroker, position: Position) -> int:
    """Return the offset of the first message at a position or after it."""
    _, text = position[0].rsplit("+", 1)
    incarnation = int(text)
    ends = [*lane.starts[1:], len(lane.messages)]
    return bisect_left(lane.numbers, position[1], lane.starts[incarnation], ends[incarnation])


@dataclass(frozen=True, slots=True)
class Reread:
    """The producer's broker payload for a message that is read again, while the stream runs."""

    message: Message


@dataclass(frozen=True, slots=True)
class PositionRow:
    """The stored position of a watcher with a backlog in a lane."""

    topic: str
    """The topic, which is also the digest of the stream."""
    lane: int
    offset: int
    position: Position
    since: datetime
    failures: int = 0
    """How often the watcher has failed while it had the message at this position open."""
    reemit: Reemission | None = None
    """The range whose events the watcher re-emits, if a replay asked for that."""
    rewound_to: Position | None = None
    """The position to which the watcher was rewound, until the broker has advanced to it."""


def plain_key(key: str) -> str:
    """The key of the message, without the suffix of re-emitted events."""
    return key.partition(_AGAIN)[0]


class ParkedBody(NamedTuple):
    """The bytes of a parked message."""

    digest: str
    """The digest of the message's stream."""
    key: str
    """The key under which the message is parked."""
    data: str
    """The message's own key, which stands for its bytes."""


def size_of_bodies(bodies: Iterable[ParkedBody]) -> int:
    """The total size of the bodies in bytes."""
    return sum(len(body.data) for body in bodies)


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A message that is stored or parked for a watcher."""

    id: int
    watcher: int
    body: ParkedBody
    lane: str
    key: str
    state: str
    failures: int
    parked_at: datetime
    was_set_aside: bool = False
    """Whether the message was ever parked. If so, the state `kept` means that an operator has asked
    for a replay of the message.
    """

    @property
    def message(self) -> str:
        """The message's own key."""
        return self.body.data

    @property
    def is_reemitted(self) -> bool:
        """Whether the message's events are re-emitted, under another key."""
        return _AGAIN in self.key

    @property
    def is_stored(self) -> bool:
        return self.state == ParkedState.KEPT.value


class ParkedBounds(Protocol):
    """The bounds of parked messages."""

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
    """The owner of a connection: a stream in one instance, under one lease."""

    @property
    def fence(self) -> Fence: ...

    @property
    def is_alive(self) -> bool:
        """Whether the owner's process is alive."""

    @property
    def is_over(self) -> bool:
        """Whether the owner's instance knows that the lease is over."""


class Cohort(NamedTuple):
    """The watchers that must resolve a message, as they are at its broadcast."""

    watchers: dict[int, Subscriber | None]
    """Each watcher's subscriber, or None if the watcher is absent."""
    triggers: tuple[frozenset[int], ...]
    """The watchers of each trigger. A trigger resolves a message once for all its watchers."""


class Consumer:
    """The part of a broker connection that deliveries refer to."""

    def __init__(self, owner: Owner, number: int) -> None:
        self.owner = owner
        self.number = number
        self.duplicated: set[tuple[int, int]] = set()
        """Lane and offset of the messages that the broker delivers twice without a failure."""

    @property
    def is_alive(self) -> bool:
        return self.owner.is_alive


def _ignore(_: Delivery) -> None:
    pass


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery of a message. It is the producer's broker payload.

    Only checkers use the fields after `generation`.
    """

    message: Message
    consumer: Consumer
    generation: int
    number: int = -1
    """The delivery's number in the group's order of broadcasts."""
    cohort: dict[int, Subscriber | None] = field(default_factory=dict)
    """The watchers that had to resolve the message when it was broadcast, with their subscribers (None: absent)."""
    triggers: tuple[frozenset[int], ...] = ()
    """For each trigger: the watchers of the cohort that it served at the broadcast."""
    is_under_lease: bool = True
    """False if the owner knew at the broadcast that its lease was over."""
    confirm_broadcast: Callable[[Delivery], None] = _ignore
    """Called when there is proof that the message was broadcast."""
    is_broadcast: bool = False
    was_behind_failed: bool = False
    """Whether an earlier message of the lane failed for all watchers after the poll had pulled this message."""
    opened: set[int] = field(default_factory=set)
    caught_up: set[int] = field(default_factory=set)
    """The watchers whose catch-up has passed the message since it was broadcast."""
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def cohort_names(self) -> str:
        """The watchers of the cohort, with absent ones in parentheses."""
        return ",".join(f"{one}" if there else f"({one})" for one, there in self.cohort.items())

    @property
    def is_duplicate(self) -> bool:
        """Whether the broker delivers this message twice without a failure."""
        return (self.message.lane, self.message.offset) in self.consumer.duplicated
