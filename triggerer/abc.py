"""The interfaces for plugin authors: triggers, producers, events and outcomes.

A shared stream reads a source once for many triggers. Its terms:

- A group is one life of the stream: a producer, which reads the source, and one subscriber for each trigger. A group
  that fails is replaced by a new one.
- A raw event is a message that the producer yields. Each subscriber's filter makes trigger events from raw events.
- A subscriber resolves a raw event: it acks, fails or rejects it.
- A lane is the unit of order, such as a Kafka partition. The producer advances a lane: the broker's position moves past
  the events that all subscribers have resolved.

`triggerer/streams/DESIGN.md` states the guarantees that the runtime gives.
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
    "StoreMark",
    "StreamState",
    "SubscriberOverflow",
    "TriggerEvent",
    "get_connection",
    "reject_shared_stream_event",
]


class TriggerEvent:
    """One occurrence that a trigger reports. It becomes one asset event for each watcher of the trigger.

    Args:
        payload: A JSON-like value. A mapping becomes the asset event's `extra`. For any other value, `extra` is
            `{"payload": value}`.
        partition_key: The partition that the asset event is about. None: no partition.
        key: The idempotency key of the asset event, unique for the watcher. Set it only in `run_from`. In a shared
            stream, the key comes from the producer's `get_idempotency_key`.
    """

    __slots__ = ("key", "partition_key", "payload")

    def __init__(
        self, payload: Any, *, partition_key: str | None = None, key: str | None = None
    ) -> None:
        self.payload = payload
        self.partition_key = partition_key
        self.key = key

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TriggerEvent)
            and bool(other.payload == self.payload)
            and other.partition_key == self.partition_key
            and other.key == self.key
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        key = "" if self.partition_key is None else f", partition_key={self.partition_key!r}"
        return f"TriggerEvent({self.payload!r}{key})"


@dataclass(frozen=True, slots=True)
class AdvanceOutcome:
    """The numbers of subscribers that acked, failed and rejected an event.

    Each subscriber counts in only one of the three numbers.

    Attributes:
        unread: How many of the failed subscribers had not pulled the event, although their filters ran. For example, a
            filter raised at an earlier event.
        is_set_aside: True if the runtime has stored the event for the subscribers that rejected it. The producer then
            need not dead-letter the event.
    """

    acked: int
    failed: int
    rejected: int
    unread: int = field(default=0, compare=False)
    is_set_aside: bool = field(default=False, compare=False)

    @property
    def is_clean(self) -> bool:
        """True if at least one subscriber acked the event, and no subscriber failed or rejected it."""
        return self.acked > 0 and not self.failed and not self.rejected

    @property
    def blames_event(self) -> bool:
        """True if a failed subscriber had pulled the event, or its filter did not run at all."""
        return self.failed > self.unread


class AdvanceItem(NamedTuple):
    """One event of a lane, with its outcome."""

    broker_payload: Any
    outcome: AdvanceOutcome


@dataclass(frozen=True, slots=True)
class SharedStreamSelector:
    """Selects the raw events that a trigger's filter needs: those for which `read` returns one of `values`.

    A selector saves time if many triggers of a stream look for different values: the runtime reads the value of an
    event once for all of them, and wakes only the filters that need the event.

    Args:
        by: The name of the value that `read` returns. Triggers of one stream with an equal `by` must have
            equivalent `read` functions.
        read: Returns the value in a raw event. Called on the event loop for each event, so it must be quick and without
            I/O. If it raises, or the value is not hashable, all filters receive the event.
        values: The values that this trigger's filter needs.
    """

    by: Hashable
    read: Callable[[Any], Hashable]
    values: frozenset[Hashable]


class StreamState(ABC):
    """The position of a stream in its source, as one JSON value in the service's database.

    Use it for a source that does not store its readers' positions. The service keeps the value while the stream has a
    watcher, even if another instance of the service takes over the stream.
    """

    @property
    @abstractmethod
    def value(self) -> Any:
        """The value that was saved last, perhaps by an earlier producer. None: no value was saved. Do not change it."""

    @abstractmethod
    async def save(self, value: Any) -> None:
        """Replace the value. Returns when the new value is durable. Waits while the database is unreachable.

        Call this in `advance`, because the trigger events of the items are durable by then.

        After a restart, the producer continues at the saved position. If the position passed an item that `advance` has
        not received, that item would be lost. An item that is read again is recognised by its idempotency key.

        Args:
            value: JSON, of at most 1 MiB.
        Raises:
            PluginError: The value is not JSON, or too large.
            StoreError: Another instance owns the stream by now, or the store refuses the value. Let the error end
                the group.
        Cancellation: The value may become durable anyway.
        """


class StoreMark(ABC):
    """A stream's mark: a text that the service stores in its database, and renews every few seconds.

    The producer stores the newest mark with each position at the broker. If the mark of a position is newer than the
    database's mark, the database was restored from a backup. A stream that continued from this
    position would skip messages whose events the backup lacks.
    """

    @property
    @abstractmethod
    def text(self) -> str:
        """The mark, at most 60 ASCII characters. Store it at the broker with each position."""

    @property
    def last_read_at(self) -> datetime | None:
        """When the stream was last read, to within a few seconds, by the database's clock; None: never, or unknown.

        If the stream was read, and the broker has no position, the broker has lost the position. Ask before `check`:
        after a successful `check`, the stream counts as read.
        """
        return None

    @abstractmethod
    def check(self, marks: Iterable[str | None]) -> None:
        """Check the marks of the positions from which the stream is about to be read.

        Call this before the first message is read, and again for positions that are found later.

        Args:
            marks: The mark of each position. None: the position has no mark, because another program set it.
        Raises:
            StoreRestored: At least one mark is newer than the database. Read nothing, and let the error end the group.
        """


ReportAdvanced = Callable[[Iterable[int]], None]
"""Receives the indices of batches that are advanced; see `SharedStreamProducer.advance_lanes`."""

ReportPassed = Callable[[list[Any]], None]
"""Receives a position as `get_position` returns it; see `SharedStreamProducer.read_lane_reporting`."""

ReportStanding = Callable[[Hashable, str | None], None]
"""Receives a lane, and why it stands, or None if the lane continues; see `SharedStreamProducer.use_standing`."""


def _ignore_report(indices: Iterable[int]) -> None:
    """Ignore a report of `advance_lanes`, for a caller that only waits for all batches."""


class SharedStreamProducer(ABC):
    """Reads one upstream for all subscribers of a shared stream, and advances past the events that they resolved."""

    lanes_advance_side_by_side: ClassVar[bool] = False
    """True if `advance` may be awaited for several lanes at once. Within a lane, calls never overlap."""

    pauses_lanes: ClassVar[bool] = False
    """True if `pause_lane` pauses one lane while the others continue. False: the whole stream pauses."""

    @abstractmethod
    def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield `(event, broker_payload)` pairs, in order within each lane, for as long as the group lives.

        Called once. The iterator is closed before `aclose` is called. Returning or raising ends the group. After a
        growing delay, a new group starts with a new producer. The new producer must yield again all events that were
        not advanced.
        """

    @abstractmethod
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Advance the broker past the next contiguous events of one lane. All subscribers have resolved these events.

        `batch` is never empty. The producer decides how the broker redelivers a failed item, and must never commit past
        a failed item. Raising ends the group.

        Cancellation: At shutdown, and when the group ends. The broker then redelivers events that were not advanced.
        """

    async def advance_lanes(
        self, batches: Sequence[Sequence[AdvanceItem]], report: ReportAdvanced = _ignore_report
    ) -> None:
        """Advance several lanes in one call. Each batch contains the next events of one lane.

        If each message is a lane of its own, override this method and set `lanes_advance_side_by_side`. The runtime
        then never calls `advance`, which would need one call and one task for each message. Calls of this method may
        overlap, with events of different lanes.

        Args:
            report: Call this function on the event loop with the indices of batches that are advanced already, so that
                their lanes continue early. When this method returns, all batches count as advanced.
        """
        raise NotImplementedError(f"{type(self).__qualname__} advances each lane separately")

    async def run(self) -> None:  # noqa: B027  (an optional hook)
        """Work concurrently with the poll, for instance to renew locks or to receive messages.

        Awaited once, in a separate task, when the group starts, but only if the method is overridden. Returning or
        raising ends the group.

        `run` may begin long before `open_stream` is iterated: after a restore of the database, the
        poll first waits until the watchers are rewound. `run` continues while a stopping group
        waits for its outstanding events.

        Cancellation: When the group ends, before `aclose`.
        """

    def use_state(self, state: StreamState) -> None:  # noqa: B027  (an optional hook)
        """Receive the object with which the producer reads and saves the stream's state.

        Called once, before `open_stream`. The runtime reads the state only if this method is overridden.
        """

    def state_after(self, items: Sequence[AdvanceItem]) -> Any:
        """Return the state after these items. The runtime stores the state in the transaction of the items' events.

        Override this method to need one transaction instead of two. Otherwise `advance` stores the state after the
        events. Not called if `lanes_advance_side_by_side` is set.

        - The items are the next items of each lane, in order. All subscribers have passed the items, but the trigger
          events are not durable yet. So do not acknowledge the items at the source.
        - After the transaction, even if it failed, `advance` receives these items, perhaps with later items. `advance`
          must save the state as usual. If the transaction has stored the state, `save` writes nothing.
        - Between this call and that call of `advance`, save no older state, neither in `open_stream` nor elsewhere.
        """
        raise NotImplementedError(f"{type(self).__qualname__} saves its state in advance()")

    def use_mark(self, mark: StoreMark) -> None:  # noqa: B027  (an optional hook)
        """Receive the stream's mark. With the mark, the producer detects that the database was restored from a backup.

        Override this method if the producer can store a text with each position at the broker. Called once, before
        `open_stream`. Not called in tests without a store.
        """

    def use_standing(self, report: ReportStanding) -> None:  # noqa: B027  (an optional hook)
        """Receive the function with which the producer shows operators that a lane stands.

        A lane stands if its next message has reached the limit of deliveries, and the source does not accept the
        message as a dead letter. Called once, before `open_stream`.

        Args:
            report: Call this function on the event loop with the lane and the reason. The stream's watchers are then
                shown as failing. When the lane continues, call the function with the lane and None. The function never
                raises, and may be called any number of times.
        """

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        """Return the event's lane, such as a partition or an ordering key. By default all events are in one lane."""
        return None

    def get_idempotency_key(self, broker_payload: Any) -> str | None:
        """Return the message's idempotency key. None (the default): a redelivered message creates its events again.

        Redeliveries of one message must have equal keys. If a topic was deleted and created again, its messages must
        have other keys than the deleted topic's messages at the same positions.
        """
        return None

    def get_size(self, broker_payload: Any) -> int:
        """Return how many bytes the message occupies in memory. Streams and lanes have limits in bytes.

        Called before an event is broadcast, and when catch-up reads it. By default no size is known (0), and only the
        number of events is limited.
        """
        return 0

    def dead_letters_rejected(self, broker_payload: Any) -> bool:
        """Return whether `advance` will send this rejected message to the source's dead letters.

        Called on the event loop, before the `advance` of a message that a filter has rejected.

        - False (the default): if the producer overrides `dump_event`, the runtime sets the message aside for each
          watcher that rejected it. The outcome that `advance` receives has `is_set_aside`.
        - True: `advance` must dead-letter the message. If the source refuses the dead letter, `advance` must redeliver
          the message. This method must then return False for some time, for example a minute (`RecentRefusals`).
        """
        return False

    # The hooks below are optional. The runtime concludes from the overridden hooks what the source can do. For example,
    # a source whose producer overrides `read_lane` is a log.

    # Hooks of a log, whose messages remain after they were read, and can be read again from any position.

    def get_position(self, broker_payload: Any) -> list[Any]:
        """Return a message's position in its lane. Override this only if the source is a log.

        Returns:
            `[incarnation, number]`, as JSON. A recreated lane has another incarnation than its predecessor. The number
            grows within the lane, with or without gaps. Only positions of one incarnation are compared.
        """
        raise NotImplementedError(f"{type(self).__qualname__} reads no log")

    def read_lane(self, lane: Hashable, position: list[Any]) -> AsyncIterator[tuple[Any, Any]]:
        """Yield a lane's `(event, broker_payload)` pairs from a position on, while `open_stream` continues.

        This is an async generator that never ends. It begins:

        - Usually with the message at `position`.
        - If the source has deleted this message: with the oldest later message. The generator logs how many messages
          are missing.
        - If the lane was deleted and created again after `position` was read: with the lane's first message. The
          generator logs this.

        The messages and keys must equal those of `open_stream`. The generator must not commit any position.

        Several generators may be open at once, even for one lane, and even before `open_stream` is iterated. An error
        of one generator ends neither the others nor the group.

        `lane` may come from the store, which keeps lanes as JSON. So lists and tuples in a lane arrive as tuples.
        """
        raise NotImplementedError(f"{type(self).__qualname__} reads no log")

    def read_lane_reporting(
        self, lane: Hashable, position: list[Any], report: ReportPassed
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Like `read_lane`, but also report how far the lane was read. By default, the same as `read_lane`.

        Override this if a lane can end with positions that have no message, such as transaction markers or deleted
        messages. Without the report, the runtime would not learn that the lane was read to its end.

        Args:
            report: Call this function with a position while the generator waits for the next message. All messages
                before the position must have been yielded.
        """
        return self.read_lane(lane, position)

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        """Return, by lane, the position of the first message that was published at `start` or later.

        The result contains every lane. If all messages of a lane are older than `start`, return the position that the
        lane's next message will get.

        Args:
            start: None: return the positions of the oldest messages.
        """
        raise NotImplementedError(f"{type(self).__qualname__} reads no log")

    # Hooks for setting messages aside: they are stored as bytes, and passed to a filter later.

    def dump_event(self, event: Any) -> bytes | None:
        """Return an event as bytes, with all of its parts that a filter may read.

        Return None for an event that need not be stored. The event then counts as acked.
        """
        raise NotImplementedError(f"{type(self).__qualname__} stores no events")

    def load_event(self, data: bytes) -> Any:
        """Return the event that `dump_event` has turned into `data`, in the form that filters receive.

        Raise any error if `dump_event` did not write the bytes.
        """
        raise NotImplementedError(f"{type(self).__qualname__} stores no events")

    async def dead_letter(self, event: Any, reason: str) -> None:
        """Send an event to the source's dead letters. Returns when it is durable there."""
        raise NotImplementedError(f"{type(self).__qualname__} has no dead letters")

    def get_waiting(self) -> Mapping[Hashable, int] | None:
        """Return the number of messages that wait at the source, by lane. None (the default): unknown.

        The numbers are only shown to people and in metrics. So take them from the source's last answers, without a
        request to the source. Another thread may call this method.
        """
        return None

    async def pause(self) -> None:  # noqa: B027  (an optional hook)
        """Stop the broker's delivery while the group pulls no events, but keep the connection. By default does nothing.

        For example, a Kafka consumer must stay in its consumer group. Called while `open_stream` is suspended at a
        `yield`. `resume` follows if the group does not end first. Raising ends the group.
        """

    async def resume(self) -> None:  # noqa: B027  (an optional hook)
        """Let the broker deliver again, because the group is about to pull events. Called after `pause`."""

    async def pause_lane(self, lane: Hashable) -> None:  # noqa: B027  (an optional hook)
        """Deliver no event of this lane now, because too many of its events are not advanced. Other lanes continue.

        Called only if `pauses_lanes` is True, while `open_stream` is suspended at a `yield`. `resume_lane` follows if
        the group does not end first.

        If a paused lane delivers an event, the runtime calls this method again. So the producer may forget a pause, for
        example when the broker reassigns a partition.
        """

    async def resume_lane(self, lane: Hashable) -> None:  # noqa: B027  (an optional hook)
        """Resume a paused lane: deliver its events from where it was paused. The lane may no longer exist.

        Called from another task, while `open_stream` may be waiting for the broker.
        """

    async def aclose(self) -> None:  # noqa: B027  (many have no resources)
        """Release the producer's resources. Called exactly once, even if `open_stream` was never iterated."""


@dataclass(frozen=True, slots=True)
class SourceLag:
    """The messages that wait at a source; see `BaseEventTrigger.measure_lag`.

    Attributes:
        messages: The number of messages that are not acknowledged. None: unknown.
        by_part: The numbers by partition, or by the state of a queue's messages.
        note: A remark on the number, or the reason why it is unknown.
    """

    messages: int | None
    by_part: Mapping[str, int] = field(default_factory=dict)
    note: str | None = None


class BaseTrigger(ABC):
    """An object that runs in the triggerer and can be recreated from its class path and JSON arguments."""

    @abstractmethod
    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the keyword arguments (JSON) with which a process can create an equal trigger.

        Each call must return the same values, because the service identifies the trigger by these values.
        """

    async def cleanup(self) -> None:  # noqa: B027  (many have no resources)
        """Release the resources of `run` or the filter. Called once when the trigger stops, even after an error.

        With `[triggerer] isolation`, the method is not called if the trigger's process has died, or if the filter does
        not end when it is cancelled.
        """


class BaseEventTrigger(BaseTrigger, ReportsOccurrences):
    """A trigger that reports every occurrence, and does not end after the first, as an `AssetWatcher` requires.

    A subclass need not call `super().__init__()`. It implements one of these sets of methods:

    - `run`.
    - `run_from`.
    - `shared_stream_key`, `filter_shared_stream` and `open_shared_stream` (fast path: nothing is acknowledged).
    - `shared_stream_key`, `filter_shared_stream` and `create_shared_stream_producer` (ack mode).
    """

    # The methods that raise NotImplementedError are not abstract, because no trigger implements all of them.

    def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield events. An async generator, for a trigger that has no stream key, and so no shared stream."""
        raise NotImplementedError(
            f"{type(self).__qualname__} implements neither run() nor a shared stream"
        )

    def run_from(self, bookmark: Any) -> AsyncIterator[tuple[Sequence[TriggerEvent], Any]]:
        """Yield events together with the bookmark that is stored with them, in one transaction.

        Implement this async generator instead of `run` for a trigger that reads a source by position and has no stream
        key. The generator is resumed once the events and the bookmark are durable. If the events cannot be stored, the
        generator is closed, and later started again from the last durable bookmark. So a failure neither loses nor
        repeats an event.

        Each watcher has its own trigger and bookmark. The bookmark stays in these cases:

        - The trigger's arguments change.
        - Another instance of the service takes over the watcher.
        - The watcher is removed and declared again.

        The bookmark is deleted with the asset.

        Args:
            bookmark: The JSON value that this watcher stored last. None: the watcher has stored no
                value, or a trigger of another class path stored the value.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no bookmark")

    def shared_stream_key(self) -> Hashable | None:
        """Return the stream key. Triggers with equal keys share a poll. None (the default): no shared stream.

        Called when the DAG file is parsed, and once at each start of the trigger. The key must depend only on the
        arguments.
        """
        return None

    def describe_stream(self) -> str | None:
        """Return the stream's name for people: `kafka orders (group billing)`. None (the default): the key's parts.

        Tables, logs and errors show this name, not the key. The name must depend only on the key, so that all triggers
        of a stream return one name.
        """
        return None

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield raw events for all subscribers of a stream on the fast path. An async generator.

        Args:
            kwargs: The arguments of the trigger that opens the stream.
        """
        raise NotImplementedError(
            f"{cls.__qualname__} has a stream key but no open_shared_stream()"
        )

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return a new producer for the stream. A class that overrides this method has its stream in ack mode.

        Args:
            kwargs: The arguments of the trigger that opens the stream.
        """
        raise NotImplementedError(
            f"{cls.__qualname__} does not implement create_shared_stream_producer()"
        )

    async def check_source(self) -> None:
        """Check that the trigger's source can be read, and change nothing there. By default nothing is checked.

        `triggerer check` calls this method for one trigger of each stream. The service never calls it. The call is
        cancelled after a few seconds, and then the source counts as unavailable.

        Raises:
            ConfigurationError: A setting is wrong.
            BrokerRefused: The broker refuses the login, or does not have the source.
            BrokerUnavailable: The broker does not answer this machine.
        """

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        """Return facts about the delivery of messages. The runtime computes the watchers' guarantee from the facts.

        The guarantee is at most once, at least once or effectively once. By default, the facts follow from the
        overridden methods. For example, a repeated message is recognised if the producer has `get_idempotency_key`.

        `triggerer check` calls this method for one trigger of each stream. The service calls this method before each
        start of a trigger whose watcher declares a guarantee. The call is cancelled after a few seconds.

        The method must change nothing at the source.

        Args:
            ask: True: ask the source for its retention and dead letters. False: use only arguments and settings.
        Raises:
            Errors of `check_source`.
        """
        return await _describe_delivery(self)

    async def measure_lag(self) -> SourceLag | None:
        """Return the number of messages that wait at the source. None (the default): the number is not known.

        `triggerer watchers list --lag` calls this method for one trigger of each stream. The service never calls it.
        The call is cancelled after a few seconds. If the method raises, the command shows the error and no number.

        The method must change nothing at the source.
        """
        return None

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        """Return which raw events `filter_shared_stream` needs. None: it needs all events.

        Called when the filter starts. An event that is not selected counts as acked for this trigger, and the filter
        does not receive the event. So select every event from which the filter makes trigger events.

        If a subclass overrides the filter but not this method, the subclass's filter receives all events.
        """
        return None

    def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        """Make trigger events from raw events. An async generator.

        Yield all trigger events that derive from a raw event before pulling the next raw event. By pulling an event,
        the filter tells the runtime that it is done with the previous event.
        """
        raise NotImplementedError(
            f"{type(self).__qualname__} has a stream key but no filter_shared_stream()"
        )


def is_acknowledged(cls: type[BaseEventTrigger]) -> bool:
    """Whether the class's streams are in ack mode, because it overrides `create_shared_stream_producer`."""
    default = BaseEventTrigger.create_shared_stream_producer
    ours = cls.create_shared_stream_producer
    return getattr(ours, "__func__", ours) is not getattr(default, "__func__", None)


def has_bookmark(cls: type[BaseEventTrigger]) -> bool:
    """Whether the class overrides `run_from`."""
    return cls.run_from is not BaseEventTrigger.run_from


async def _describe_delivery(trigger: BaseEventTrigger) -> DeliveryFacts:
    """Return the facts that follow from the methods which a trigger and its producer override."""
    cls = type(trigger)
    if trigger.shared_stream_key() is None:
        if has_bookmark(cls):
            return DeliveryFacts(
                is_acknowledged=True,
                because="its position is stored in the transaction of the events",
                key="the stored position",
            )
        return DeliveryFacts(
            is_acknowledged=False,
            because="it runs without a shared stream, and an event that was not stored is not delivered again",
        )
    if not is_acknowledged(cls):
        return DeliveryFacts(
            is_acknowledged=False,
            because="it takes the fast path, which neither acknowledges nor redelivers messages",
        )
    producer = cls.create_shared_stream_producer(trigger.serialize()[1])
    try:
        has_key = type(producer).get_idempotency_key is not SharedStreamProducer.get_idempotency_key
    finally:
        await producer.aclose()
    return DeliveryFacts(
        is_acknowledged=True,
        because="the source is advanced after the events are durable",
        key="the producer's key" if has_key else None,
    )


class RejectsOpenEvent(Protocol):
    """The runtime's side of `reject_shared_stream_event`."""

    def reject_open_event(self, reason: str | None = None) -> bool:
        """Reject the event that the filter pulled last. Return False if the filter has already moved past it."""


# The runtime sets this in the task that runs a filter. Child tasks and `asyncio.to_thread` inherit the value.
current_subscriber: ContextVar[RejectsOpenEvent | None] = ContextVar(
    "triggerer_current_subscriber", default=None
)


def reject_shared_stream_event(reason: str | None = None) -> None:
    """Reject the raw event that the calling filter pulled last, because the event can never be processed.

    The event is resolved at once. Its message goes to the source's dead letters, or is set aside for the watcher.

    Call this function before the filter pulls the next event. Otherwise it only issues a warning. The filter's child
    tasks, and functions in `asyncio.to_thread`, may call it, too.

    Args:
        reason: Shown with a message that is set aside.
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
    """Set the function that `get_connection` calls."""
    global _resolve_connection  # noqa: PLW0603  (one process has one configuration)
    _resolve_connection = resolver


def get_connection(connection_id: str) -> Mapping[str, Any]:
    """Return the settings under `[connections.<connection_id>]`, with secrets resolved.

    Raises:
        ConfigurationError: There is no such connection, or one of its secrets cannot be read.
    """
    if _resolve_connection is None:
        # Outside the service, for instance in a plugin's test or a notebook, no resolver is installed. Then read the
        # configuration as the service does. The import is here because only this case needs the configuration.
        from triggerer.config import load_connections

        install_connections(load_connections().get)
    assert _resolve_connection is not None
    return _resolve_connection(connection_id)
