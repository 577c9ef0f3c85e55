"""What plugin authors implement or receive: triggers, producers, events and outcomes.

The guarantees that the runtime gives to what is defined here stand in `triggerer/streams/DESIGN.md`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Protocol

from triggerer.broker_message import BrokerMessage
from triggerer.domain.authoring.occurrences import ReportsOccurrences
from triggerer.domain.watchers.guarantees import DeliveryFacts, Finding, Guarantee
from triggerer.errors import AckTimeout, SubscriberOverflow

__all__ = [
    "AckTimeout",
    "AdvanceItem",
    "AdvanceOutcome",
    "BaseEventTrigger",
    "BaseTrigger",
    "BrokerMessage",
    "DeliveryFacts",
    "Finding",
    "Guarantee",
    "ReportAdvanced",
    "ReportPassed",
    "SharedStreamProducer",
    "SharedStreamSelector",
    "SourceLag",
    "StreamState",
    "SubscriberOverflow",
    "TriggerEvent",
    "get_connection",
    "reject_shared_stream_event",
]


class TriggerEvent:
    """One occurrence that a trigger reports; it becomes one asset event of each watcher of the trigger.

    Args:
        payload: JSON-like. A mapping becomes the asset event's `extra`, anything else `{"payload": ...}`.
        partition_key: The partition that the asset event is about; None: it is about none.
    """

    __slots__ = ("partition_key", "payload")

    def __init__(self, payload: Any, *, partition_key: str | None = None) -> None:
        self.payload = payload
        self.partition_key = partition_key

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TriggerEvent)
            and bool(other.payload == self.payload)
            and other.partition_key == self.partition_key
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        key = "" if self.partition_key is None else f", partition_key={self.partition_key!r}"
        return f"TriggerEvent({self.payload!r}{key})"


@dataclass(frozen=True, slots=True)
class AdvanceOutcome:
    """How the subscribers that had to resolve an event resolved it; each is counted once.

    Attributes:
        unread: How many of those that failed it had not pulled it when their filters raised, or ended, at another
            event. Where that is so of all of them, the failure is none of the event: see `blames_event`.
        is_set_aside: Whether the runtime has stored the event for those that rejected it: it needs no dead letter.
    """

    acked: int
    failed: int
    rejected: int
    unread: int = field(default=0, compare=False)
    is_set_aside: bool = field(default=False, compare=False)

    @property
    def is_clean(self) -> bool:
        """Whether nobody failed or rejected it and somebody acked it; an event without subscribers is not clean."""
        return self.acked > 0 and not self.failed and not self.rejected

    @property
    def blames_event(self) -> bool:
        """Whether somebody failed it who had it open, or was not there: what a limit of deliveries counts."""
        return self.failed > self.unread


class AdvanceItem(NamedTuple):
    """One event of a lane, in event order, with its outcome."""

    broker_payload: Any
    outcome: AdvanceOutcome


@dataclass(frozen=True, slots=True)
class SharedStreamSelector:
    """What has to stand in a raw event for a trigger's filter to have any business with it.

    The siblings of a stream whose `by` is equal are looked up in one table: an event is read once for all of them, and
    shown to the filters that look for what was read. So of many watchers that differ in one value few are woken.

    Args:
        by: Names what `read` reads. Triggers of one stream may give equal ones only if their `read`s do the same.
        read: From a raw event to the value. Called once per event, on the event loop: quick, and without I/O. Where it
            raises, or returns what cannot be hashed, all are shown the event.
        values: Those that this trigger looks for.
    """

    by: Hashable
    read: Callable[[Any], Hashable]
    values: frozenset[Hashable]


class StreamState(ABC):
    """What a stream needs to go on where it was, for sources that keep no position: one JSON value, kept by the store.

    It lives as long as the stream has a watcher, whichever instance owns it.
    """

    @property
    @abstractmethod
    def value(self) -> Any:
        """The value that was saved last, by a predecessor too; None: none was saved yet. Do not change it."""

    @abstractmethod
    async def save(self, value: Any) -> None:
        """Replace it. Returns when the new value is durable; while the database is away, that takes as long.

        Called by `advance` for what it is told of: its events are durable by then, so they are before the state that
        passes them. What is not advanced must not be passed: it comes again, to be recognised by its idempotency key.

        Args:
            value: JSON, of at most 1 MiB.
        Raises:
            PluginError: It is not JSON, or too large.
            StoreError: Another instance owns the stream by now, or the store refuses the value. Let it end the group.
        Cancellation: It may become durable all the same.
        """


ReportAdvanced = Callable[[Iterable[int]], None]
"""Takes the places of batches that are advanced; see `SharedStreamProducer.advance_lanes`."""

ReportPassed = Callable[[list[Any]], None]
"""Takes a position, as `get_position` gives it; see `SharedStreamProducer.read_lane_reporting`."""


ReportStanding = Callable[[Hashable, str | None], None]
"""Takes a lane and why it stands; None: the lane goes on. See `SharedStreamProducer.use_standing`."""


def _tell_nobody(places: Iterable[int]) -> None:
    """Where nobody wants to know before the call returns."""


class SharedStreamProducer(ABC):
    """Reads one upstream for all subscribers of a shared stream, and tells it how far they got."""

    lanes_advance_side_by_side: ClassVar[bool] = False
    """Whether `advance` may be awaited for several lanes at once; within a lane it never is."""

    pauses_lanes: ClassVar[bool] = False
    """Whether `pause_lane` holds back one lane while the others go on. Otherwise the whole stream pauses for it."""

    @abstractmethod
    def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield `(event, broker_payload)` pairs, in order within each lane, for as long as the group lives.

        Called once. The iterator is closed before `aclose` is called. Returning or raising ends the group, which is
        then restarted with a new producer after a growing delay; what was not advanced is expected again.
        """

    @abstractmethod
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Tell the broker about the next contiguous events of one lane, all of them resolved by everybody.

        `batch` is never empty. What a failed item means for the broker is the producer's duty; it must never commit
        past one. Raising ends the group.

        Cancellation: at shutdown, and when the group ends; the broker then redelivers what it was not told.
        """

    async def advance_lanes(
        self, batches: Sequence[Sequence[AdvanceItem]], report: ReportAdvanced = _tell_nobody
    ) -> None:
        """As `advance`, for several lanes at once: each batch is the next of one lane. Off by default.

        With `lanes_advance_side_by_side`, what is ready in all lanes is handed over in one call where this is
        overridden, and `advance` is not called. For a broker with a lane for each message, for which a call and a task
        of its own would cost more than all else. No call waits for another.

        Args:
            report: To be called with the places in `batches` of those that are advanced while others are not yet, from
                the event loop and before this returns: their lanes go on at once. What was not reported is advanced
                when this returns.
        """
        raise NotImplementedError(f"{type(self).__qualname__} advances each lane by itself")

    async def run(self) -> None:  # noqa: B027  (an optional hook)
        """Work beside the poll while the stream is open: renew locks, receive. Off by default.

        Awaited once, in a task of its own, from when `open_stream` is first iterated. Returning or raising ends the
        group, as of the poll. It goes on while the group drains.

        Cancellation: when the group ends, before `aclose`.
        """

    def use_state(self, state: StreamState) -> None:  # noqa: B027  (an optional hook)
        """Take what was stored of the stream, and where to store it from now on. Off by default.

        Called once, before `open_stream`, if it is overridden: the runtime reads the state before.
        """

    def state_after(self, items: Sequence[AdvanceItem]) -> Any:
        """The state that passes these items, to be stored in the transaction of their events. Off by default.

        Beside `use_state`: without it the state is stored by `advance`, after the events. Called with the next items of
        the stream, in order, all of them accepted, before their events are durable; nothing is settled by it. Where the
        transaction goes through, `advance` is called with the same items next, and to save this same state then costs
        nothing. Where it does not, `advance` is told what became of each, and saves as ever.

        In between nothing older may be saved: what the poll alone has to store waits for `advance`.
        """
        raise NotImplementedError(f"{type(self).__qualname__} saves its state in advance()")

    def use_standing(self, report: ReportStanding) -> None:  # noqa: B027  (an optional hook)
        """Take the function that shows operators which lanes stand, and why. Off by default.

        A lane stands where a message cannot be passed, however often it comes again: it has reached its limit of
        deliveries, and the source takes no dead letters. The watchers of the stream are shown as failing, with the
        reason, until `report` is called for the lane with None. Called once, before `open_stream`.

        Args:
            report: To be called on the event loop, as often as the producer likes. Never raises.
        """

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        """The lane that orders this event's advance: a partition, an ordering key. By default there is one lane."""
        return None

    def get_idempotency_key(self, broker_payload: Any) -> str | None:
        """What identifies the message across redeliveries, and tells a recreated topic from its predecessor.

        None (the default): a redelivered message creates its asset events again.
        """
        return None

    def get_size(self, broker_payload: Any) -> int:
        """How many bytes the message holds in memory, for the bounds in bytes of streams and lanes.

        Asked once for each event, before it is broadcast. By default no size is known (0), and only the number of
        events is bounded.
        """
        return 0

    def dead_letters_rejected(self, broker_payload: Any) -> bool:
        """Whether `advance` brings this message to the source's dead letters if a filter has rejected it.

        Asked on the event loop, before the `advance` of a message that was rejected. False (the default): the runtime
        sets the message aside for each watcher that rejected it, if the producer overrides `dump_event`, and `advance`
        receives `is_set_aside`. Where the source turns out to take no dead letters, `advance` has the message
        redelivered, and the next answer is False.
        """
        return False

    # The next six are optional hooks, off by default, and not abstract: which of them a producer overrides tells what
    # its source can do. The runtime calls none that is not overridden; if it did, that would be an error of its own.

    # A log: messages stay when they have been read, and can be read again from any position.

    def get_position(self, broker_payload: Any) -> list[Any]:
        """Where a message stands in its lane, for a source that is a log. By default it is none.

        Returns:
            `[incarnation, number]`, JSON. The incarnation tells a lane that was made anew from its predecessor; the
            number grows within the lane, with gaps or without. Only positions of one incarnation are compared.
        """
        raise NotImplementedError(f"{type(self).__qualname__} reads no log")

    def read_lane(self, lane: Hashable, position: list[Any]) -> AsyncIterator[tuple[Any, Any]]:
        """Yield a lane's `(event, broker_payload)` pairs from a position on, beside `open_stream`, without an end.

        An async generator. It begins with the message at `position`, or with the first after it; where `position` is
        of a predecessor, with the lane's first message. That is reported, and so is what the log has deleted since.
        It shows what `open_stream` shows: the same messages, with the same keys. The broker is told nothing of it.
        Several may be open, of one lane too, also before `open_stream` is iterated. Raising ends this reading alone.
        `lane` may come out of the store: as JSON, with tuples for lists.
        """
        raise NotImplementedError(f"{type(self).__qualname__} reads no log")

    def read_lane_reporting(
        self, lane: Hashable, position: list[Any], report: ReportPassed
    ) -> AsyncIterator[tuple[Any, Any]]:
        """As `read_lane`, which it is by default, telling also of places that hold no message.

        These are marks of transactions, or what was deleted. A lane that ends with them is not known otherwise to have
        been read to its end.

        Args:
            report: To be called, as one item is asked for, with the position before which all has been yielded.
        """
        return self.read_lane(lane, position)

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        """By lane, the position of the first message that was published at `start` or later; None: of the earliest.

        Of every lane: where there is no such message, the position that the next one will have.
        """
        raise NotImplementedError(f"{type(self).__qualname__} reads no log")

    # What can be set aside: stored as bytes, and given to a filter later.

    def dump_event(self, event: Any) -> bytes | None:
        """Everything of an event that a filter may look at; None: nothing to keep, and nobody misses it."""
        raise NotImplementedError(f"{type(self).__qualname__} keeps no events")

    def load_event(self, data: bytes) -> Any:
        """The event that was dumped, as a filter is given it. Raises where the bytes are none of its own."""
        raise NotImplementedError(f"{type(self).__qualname__} keeps no events")

    async def dead_letter(self, event: Any, reason: str) -> None:
        """Hand an event over to where the source keeps what cannot be used. Returns when it is durable there."""
        raise NotImplementedError(f"{type(self).__qualname__} has no place for dead letters")

    async def pause(self) -> None:  # noqa: B027  (an optional hook)
        """The group pulls nothing for now: stop the broker's delivery, keep the membership. Off by default.

        Called while `open_stream` is suspended at a `yield`, and followed by `resume` unless the group ends first.
        Raising ends the group, here as in the other hooks.
        """

    async def resume(self) -> None:  # noqa: B027  (an optional hook)
        """The group is about to pull again."""

    async def pause_lane(self, lane: Hashable) -> None:  # noqa: B027  (an optional hook)
        """Too much of this lane is not advanced yet: deliver nothing of it for now, and go on with the others.

        Only with `pauses_lanes`. Called while `open_stream` is suspended at a `yield`, and followed by `resume_lane`
        unless the group ends first. What comes of the lane all the same makes the whole group wait, and this is called
        again; so a lane that went to another member and came back need not be remembered.
        """

    async def resume_lane(self, lane: Hashable) -> None:  # noqa: B027  (an optional hook)
        """There is room again: deliver the lane from where it was paused. The lane may be gone.

        Called from another task, also while `open_stream` awaits the broker.
        """

    async def aclose(self) -> None:  # noqa: B027  (many hold nothing)
        """Give back what the producer holds. Called exactly once, also when `open_stream` was never iterated."""


@dataclass(frozen=True, slots=True)
class SourceLag:
    """How much waits at a source; see `BaseEventTrigger.measure_lag`.

    Attributes:
        messages: That are not acknowledged yet, by whomever; None: unknown.
        by_part: The same by what the source is made of: by partition, or by what becomes of a queue's messages.
        note: What there is to know of the figure, or why it is unknown.
    """

    messages: int | None
    by_part: Mapping[str, int] = field(default_factory=dict)
    note: str | None = None


class BaseTrigger(ABC):
    """Something that runs in the triggerer and can be made again from its class path and JSON arguments."""

    @abstractmethod
    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the keyword arguments (JSON) that make an equal trigger; always the same for one."""

    async def cleanup(self) -> None:  # noqa: B027  (many hold nothing)
        """Give back what `run` or the filter holds. Called once when the trigger stops, for whatever reason."""


class BaseEventTrigger(BaseTrigger, ReportsOccurrences):
    """A trigger that reports occurrences rather than a condition, and so may drive an `AssetWatcher`.

    A subclass need not call `super().__init__()`. It implements `run`, or `shared_stream_key` and
    `filter_shared_stream` with either `open_shared_stream` (fast path: nothing is acknowledged) or
    `create_shared_stream_producer` (ack mode).
    """

    # What raises NotImplementedError below is not abstract: no trigger implements all of it. What its class overrides,
    # and its key, tell how it is run; the message names what it lacks for that.

    def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield events on its own. An async generator; only for triggers without a stream key."""
        raise NotImplementedError(
            f"{type(self).__qualname__} implements neither run() nor a shared stream"
        )

    def shared_stream_key(self) -> Hashable | None:
        """Equal keys share one poll. Read once, when the trigger starts. None (the default): runs on its own."""
        return None

    def describe_stream(self) -> str | None:
        """What people call the stream, such as `kafka orders (group billing)`. None (the default): its key's parts.

        Tables, logs and errors show it in place of the key. It tells all that the key covers and a person would ask
        for, and nothing that the key leaves out: siblings give one stream one name. Asked where the key is read.
        """
        return None

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield raw events for all subscribers; `kwargs` are those of the subscriber that opens the stream."""
        raise NotImplementedError(
            f"{cls.__qualname__} has a stream key but no open_shared_stream()"
        )

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Make the producer of this stream. Overriding it switches the stream to ack mode."""
        raise NotImplementedError(
            f"{cls.__qualname__} does not implement create_shared_stream_producer()"
        )

    async def check_source(self) -> None:
        """Look whether what the trigger reads from can be read, and change nothing there. By default nothing is asked.

        Called by `triggerer check`, for one trigger of each stream, and never by the service. It is cancelled after
        a few seconds; what did not answer by then counts as unavailable.

        Raises:
            ConfigurationError: The settings are wrong; nobody needs to be asked to know that.
            BrokerRefused: The broker does not let us in, or has not what is to be read.
            BrokerUnavailable: Nobody answers, which may be due to where the command is run.
        """

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        """What the source, its settings and the producer do with a message; the guarantee is computed of it.

        Called by `triggerer check`, for one trigger of each stream, and by the service before it starts a trigger whose
        watcher declares a guarantee. It changes nothing at the source, and is cancelled after a few seconds. By default
        the answer follows from what is overridden: the source is acknowledged in ack mode only, and a message is
        recognised if the producer overrides `get_idempotency_key`.

        Args:
            ask: Whether the source may be asked (how long it keeps messages, whether it has a place for dead letters).
                Otherwise the answer is what arguments and settings tell.
        Raises:
            As `check_source`.
        """
        return await _describe_delivery(self)

    async def measure_lag(self) -> SourceLag | None:
        """How much waits at the source, as it says itself. None (the default): it does not tell.

        Called where an operator asks (`triggerer watchers list --lag`), for one trigger of each stream, and never by
        the service. It changes nothing at the source, and is cancelled after a few seconds. Where it raises, the figure
        is unknown, and the error is shown.
        """
        return None

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        """Which raw events `filter_shared_stream` needs to see; asked once, when the filter starts. None: all of them.

        What is not selected counts as seen and passed: nothing derives from it, and it is not rejected. A selector that
        leaves out what the filter would have taken loses it. A subclass that overrides the filter and not this method
        is shown everything.
        """
        return None

    def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        """Turn raw events into this trigger's own. An async generator.

        All events that derive from a raw event are yielded before the next raw event is pulled: by pulling it the
        filter says that it is done with the one before.
        """
        raise NotImplementedError(
            f"{type(self).__qualname__} has a stream key but no filter_shared_stream()"
        )


def is_acknowledged(cls: type[BaseEventTrigger]) -> bool:
    """Whether the class overrides `create_shared_stream_producer`: ack mode."""
    default = BaseEventTrigger.create_shared_stream_producer
    ours = cls.create_shared_stream_producer
    return getattr(ours, "__func__", ours) is not getattr(default, "__func__", None)


async def _describe_delivery(trigger: BaseEventTrigger) -> DeliveryFacts:
    """What follows from what a trigger and its producer override."""
    cls = type(trigger)
    if trigger.shared_stream_key() is None:
        return DeliveryFacts(
            is_acknowledged=False,
            because="it runs on its own, and nothing gives an event again that was not stored",
        )
    if not is_acknowledged(cls):
        return DeliveryFacts(
            is_acknowledged=False,
            because="it takes the fast path, on which no message is acknowledged or given again",
        )
    producer = cls.create_shared_stream_producer(trigger.serialize()[1])
    try:
        has_key = type(producer).get_idempotency_key is not SharedStreamProducer.get_idempotency_key
    finally:
        await producer.aclose()
    return DeliveryFacts(
        is_acknowledged=True,
        because="the source is told of a message after its events are durable",
        key="the producer's key" if has_key else None,
    )


class RejectsOpenEvent(Protocol):
    """The runtime's side of `reject_shared_stream_event`."""

    def reject_open_event(self, reason: str | None = None) -> bool:
        """Reject the event that the filter has open; False where none is."""


# Set by the runtime in the task that drives a filter; child tasks and `asyncio.to_thread` inherit it.
current_subscriber: ContextVar[RejectsOpenEvent | None] = ContextVar(
    "triggerer_current_subscriber", default=None
)


def reject_shared_stream_event(reason: str | None = None) -> None:
    """Reject the raw event that the calling filter has open: it counts as rejected and is resolved at once.

    For messages that nobody will ever be able to use. The message goes to the source's dead letters, or is set aside
    for the watcher. May be called from the filter, from tasks that it started and from `asyncio.to_thread`. Outside an
    open event it warns and does nothing.

    Args:
        reason: Shown with the message where it is set aside.
    """
    subscriber = current_subscriber.get()
    if subscriber is None or not subscriber.reject_open_event(reason):
        warnings.warn(
            "reject_shared_stream_event() was called while no event of a shared stream is open; it does nothing",
            RuntimeWarning,
            stacklevel=2,
        )


ConnectionResolver = Callable[[str], Mapping[str, Any]]
_resolve_connection: ConnectionResolver | None = None


def install_connections(resolver: ConnectionResolver) -> None:
    """Say where `get_connection` looks; the service does so once at start, from its configuration."""
    global _resolve_connection  # noqa: PLW0603  (one process has one configuration)
    _resolve_connection = resolver


def get_connection(connection_id: str) -> Mapping[str, Any]:
    """The settings under `[connections.<connection_id>]`, secrets resolved.

    Raises:
        ConfigurationError: There is no such connection, or a secret of it cannot be read.
    """
    if _resolve_connection is None:
        # Outside the service (a plugin author's test, a notebook) nobody has installed anything: read the
        # configuration as the service would. Imported late, since the configuration is no part of this interface.
        from triggerer.config import load_connections

        install_connections(load_connections().get)
    assert _resolve_connection is not None
    return _resolve_connection(connection_id)
