"""Triggers with unchanged filters. They read from the model of the broker, and suffer injected faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from triggerer.abc import (
    BaseEventTrigger,
    SharedStreamProducer,
    SharedStreamSelector,
    TriggerEvent,
    current_subscriber,
)
from triggerer.abc import is_acknowledged as is_acknowledging
from triggerer.streams.catchup.processing.in_flight import (
    LaneMessageInFlight,
    Probe,
    ReplayedMessageInFlight,
)
from triggerer.streams.delivery.selection import is_selecting
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.testing.simulation.brokers.joint_advances import JointlyAdvanced, SimulatedJointQueue
from triggerer.testing.simulation.brokers.log_producer import SimulatedLog
from triggerer.testing.simulation.brokers.producer import SimulatedProducer, read_unacknowledged
from triggerer.testing.simulation.brokers.queue_producer import SimulatedQueue
from triggerer.testing.simulation.brokers.stored_messages import SettingAsideLog
from triggerer.testing.simulation.kernel.delivery import Answer, Delivery
from triggerer.testing.simulation.kernel.scenario import has_joint_advances

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Message
    from triggerer.testing.simulation.worlds.leased_stream import LeasedStream


class InjectedError(Exception):
    """An injected error, as if the author of a plugin had made a mistake."""


current_leased_stream: ContextVar[LeasedStream] = ContextVar("current_leased_stream")
"""The lease under which the filter of the current task was started."""


class SimulatedTrigger(BaseEventTrigger):
    """A mix-in that makes a trigger read from the model of the broker, and injects faults into the trigger's filter."""

    leased: ClassVar[LeasedStream]
    original: ClassVar[type[BaseEventTrigger]]

    def shared_stream_key(self) -> Hashable:
        return self.leased.stream.key

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        selector = super().shared_stream_selector() if is_selecting(self.original) else None
        if selector is None:
            return None
        read, values, leased = selector.read, selector.values, self.leased

        def read_or_raise(event: Any) -> Hashable:
            if leased.faults.occur(leased.scenario.filter_fault_rate):
                raise InjectedError("in a selector")
            return read(self.event_of(event))

        def is_selected(event: Any) -> bool:
            try:
                return read(event) in values
            except Exception:  # noqa: BLE001  (the filter judges an event that cannot be read)
                return True

        subscriber = current_subscriber.get()
        if isinstance(subscriber, Subscriber):
            leased.checker.record_selector(subscriber, is_selected)
        return SharedStreamSelector(selector.by, read_or_raise, values)

    @staticmethod
    def event_of(broadcast: Any) -> Any:
        """Return the raw event that a filter gets for a broadcast."""
        return broadcast

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        current_leased_stream.set(self.leased)
        subscriber = current_subscriber.get()
        record = (
            FilterRecord(self.leased, subscriber)
            if isinstance(subscriber, Subscriber)
            else RereadingRecord(self.leased, subscriber)
        )
        async with aclosing(record.reading(shared_stream)) as raw:
            events = record.watching(super().filter_shared_stream(raw))
            async with aclosing(events):
                async for event in events:
                    record.yielded += 1
                    yield event
                    await self.leased.faults.delay()
            # The filter has returned, so it is done with its open event.
            record.record_answer()

    async def cleanup(self) -> None:
        await self.leased.faults.delay()
        if self.leased.faults.occur(self.leased.scenario.filter_fault_rate):
            raise InjectedError("in cleanup")
        await super().cleanup()


class Acknowledged(SimulatedTrigger):
    """A simulated trigger in ack mode."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        leased = cls.leased
        broker, catching_up = leased.stream.broker, leased.checker.catching_up
        is_joint = has_joint_advances(leased.scenario)
        if not catching_up.is_on:
            plain = JointlyAdvanced if is_joint else SimulatedProducer
            return plain(broker, leased, leased.cohort)
        if leased.scenario.is_log:
            kind = SettingAsideLog if leased.health.catching_up_draws.sets_aside else SimulatedLog
            return kind(broker, leased, leased.cohort)
        queue = SimulatedJointQueue if is_joint else SimulatedQueue
        return queue(broker, leased, leased.cohort, is_unordered=not catching_up.is_ordered)


class OnFastPath(SimulatedTrigger):
    """A simulated trigger on the fast path.

    The group broadcasts deliveries, and a filter gets the raw event of each.
    """

    @staticmethod
    def event_of(broadcast: Any) -> Any:
        return broadcast.message.event

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Delivery]:
        deliveries = read_unacknowledged(cls.leased.stream.broker, cls.leased)
        async with aclosing(cast("AsyncGenerator[Delivery]", deliveries)):
            async for delivery in deliveries:
                yield delivery


def bind(cls: type[BaseEventTrigger], leased: LeasedStream, kind: int) -> type[BaseEventTrigger]:
    """Return a subclass of `cls` that reads from the model of the broker, in ack mode or on the fast path.

    The subclass is in ack mode if `cls` or the scenario is in ack mode.

    Args:
        kind: The kind of the filter, for the simulation's own triggers.
    """
    is_acknowledged = leased.scenario.is_acknowledged or is_acknowledging(cls)
    mode = Acknowledged if is_acknowledged else OnFastPath
    members = {"leased": leased, "original": cls, "kind": kind}
    return type(f"Simulated{cls.__name__}", (mode, cls), members)


class ErrorProbe:
    """Records the errors that a filter itself raises while it handles a message."""

    def __init__(self, leased: LeasedStream) -> None:
        self._errors = leased.checker.filter_errors
        self._given: tuple[list[int], str] | None = None
        """The watchers that the filter serves, and the message that it handles; None while it waits for a message."""

    async def watching(self, events: AsyncIterator[TriggerEvent]) -> AsyncGenerator[TriggerEvent]:
        """Yield what the filter yields. If the filter raises, count the error, and raise it again."""
        async with aclosing(cast("AsyncGenerator[TriggerEvent]", events)):
            try:
                async for event in events:
                    yield event
            except Exception as error:
                if self._given is not None:
                    self._errors.mark_raised(*self._given, error)
                raise

    def mark_given(self, watchers: list[int], message: str) -> None:
        self._given = watchers, message
        self._errors.mark_given(watchers, message)

    def mark_returned(self) -> None:
        self._given = None


class FilterRecord(ErrorProbe):
    """Stands between the runtime's stream and a live filter. It records the filter's answers, and injects faults."""

    def __init__(self, leased: LeasedStream, subscriber: Subscriber) -> None:
        super().__init__(leased)
        self.yielded = 0
        self._leased = leased
        self._subscriber = subscriber
        self._last = 0
        self._served: list[int] = []
        """The watchers for which the filter gets the open event: those without a backlog in the event's lane."""

    async def reading(self, shared_stream: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        subscriber, checker = self._subscriber, self._leased.checker
        async for event in shared_stream:
            entry = subscriber.open_entry
            delivery: Delivery = event if entry is None else entry.payload
            delivery.confirm_broadcast(delivery)
            source = subscriber.admission.open_source or subscriber.source
            served = self._served = [watcher.watcher_id for watcher in source.watchers]
            for watcher in served:
                checker.on_opened(delivery, subscriber, watcher, is_owed=entry is not None)
            # Selectors and backlogs cause gaps in the numbers. `Checker.on_advance` checks the messages in the gaps.
            expected = (
                delivery.number > self._last
                if checker.has_selector(subscriber) or checker.catching_up.is_on
                else delivery.number == self._last + 1
            )
            if self._last and not expected:
                checker.fail("S5", f"{subscriber.name} got {delivery.number} after {self._last}")
            self._last = delivery.number
            self.yielded = 0
            if await inject_fault(self._leased, served, subscriber.name, delivery.message):
                return
            self._leased.stand_still(is_behind=False)
            self.mark_given(served, delivery.message.key)
            record = partial(self._record_rejection, served, delivery.message)
            current_subscriber.set(Rejecting(subscriber, record))
            yield delivery.message.event
            self.mark_returned()
            # The filter asks for the next event, so it is done with this one.
            self.record_answer()

    def _record_rejection(self, served: list[int], message: Message) -> None:
        for watcher in served:
            self._leased.checker.catching_up.on_rejected_live(watcher, message)

    def record_answer(self) -> None:
        """Record that the filter is done with its open event, if it has one."""
        subscriber = self._subscriber
        entry = subscriber.open_entry
        if entry is not None:
            delivery: Delivery = entry.payload
            for watcher in self._served:
                delivery.answers[watcher] = Answer(self.yielded, subscriber.done > entry.seq)
                if self._leased.is_alive:
                    self._leased.checker.catching_up.on_passed(
                        watcher, delivery.message, self.yielded
                    )


class Rejecting:
    """Stands between a filter and the runtime, and records the filter's rejections."""

    def __init__(self, subscriber: Any, record: Callable[[], None]) -> None:
        self._subscriber = subscriber
        self._record = record

    def reject_open_event(self, reason: str | None = None) -> bool:
        self._record()
        return cast("bool", self._subscriber.reject_open_event(reason))


class RereadingRecord(ErrorProbe):
    """Stands between a backlog and the filter that catches up.

    Records which messages the filter passes or rejects, and injects faults.
    """

    def __init__(self, leased: LeasedStream, subscriber: Any) -> None:
        super().__init__(leased)
        self.yielded = 0
        self._subscriber = subscriber
        self._leased = leased
        self._watcher: int = subscriber.watcher.watcher_id
        self._open: Message | None = None
        self._in_flight: LaneMessageInFlight | ReplayedMessageInFlight | Probe | None = None
        self._is_rejected = False

    @property
    def _counts(self) -> bool:
        """Whether the filter's outcome counts for the message. The outcome of a probe does not count."""
        return self._leased.is_alive and not isinstance(self._in_flight, Probe)

    async def reading(self, shared_stream: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        leased, watcher = self._leased, self._watcher
        async for event in shared_stream:
            message = self._open = leased.stream.broker.message_of(event)
            leased.checker.trace("opened again", message=message.key, watcher=watcher)
            self._in_flight, self._is_rejected = self._subscriber.open_message, False
            if leased.is_alive and leased.checker.is_owner(leased):
                self._mark_opened(message)
            self.yielded = 0
            current_subscriber.set(Rejecting(self._subscriber, self._record_rejection))
            if await inject_fault(leased, [watcher], f"watcher {watcher}", message):
                return
            leased.stand_still(is_behind=True)
            self.mark_given([watcher], message.key)
            yield event
            self.mark_returned()
            # The filter asks for the next event, so it is done with this one.
            self.record_answer()

    def _mark_opened(self, message: Message) -> None:
        checker, watcher, in_flight = self._leased.checker, self._watcher, self._in_flight
        if isinstance(in_flight, Probe):
            checker.probes.on_tried(self._leased, watcher)
            checker.parked.on_tried(in_flight.backlog, watcher, message)
            return
        if isinstance(in_flight, LaneMessageInFlight):
            # A replayed message may come before or after other messages of its lane, so check the order only for a
            # backlog.
            checker.catching_up.on_opened(watcher, message)
            checker.parked.on_given(in_flight.backlog, watcher, message, self._subscriber)
        checker.rest.on_given(watcher, message)
        checker.replays.on_given(watcher, message)
        checker.probes.on_given(self._leased, watcher, message)

    def _record_rejection(self) -> None:
        self._is_rejected = True
        if self._open is not None and self._counts:
            self._leased.checker.catching_up.on_rejected(self._watcher, self._open)

    def record_answer(self) -> None:
        """Record that the filter is done with its open message, if it has one."""
        message, self._open = self._open, None
        if message is None:
            return
        if self._counts:
            self._leased.checker.catching_up.on_passed(self._watcher, message, self.yielded)
            if isinstance(self._in_flight, LaneMessageInFlight):
                self._leased.checker.handover.on_passed(self._watcher, message)
            if self._leased.relapses is not None:
                self._leased.relapses.on_read_again(self._leased.stream, self._watcher, message)
        elif isinstance(self._in_flight, Probe):
            is_evidence = self.yielded > 0 or self._is_rejected
            self._leased.checker.parked.on_passed(
                self._in_flight.backlog, self._watcher, self._subscriber, is_evidence=is_evidence
            )


async def inject_fault(
    leased: LeasedStream, watchers: Sequence[int], name: str, message: Message
) -> bool:
    """Perhaps inject a fault into the filter of these watchers. Return whether the filter must return."""
    faults, scenario = leased.faults, leased.scenario
    for watcher in watchers:
        await leased.health.suffer(watcher, message.key)
    await faults.delay()
    if faults.is_instant:
        # Some filters take one to three turns longer than others.
        for _ in range(min(watchers) % 4):
            await asyncio.sleep(0)
    if not faults.occur(scenario.filter_fault_rate):
        return False
    kind = faults.random.randrange(5)
    leased.checker.trace(
        ("raises", "is cancelled", "returns", "stalls", "is slow")[kind], watcher=name
    )
    match kind:
        case 0:
            raise InjectedError("in the filter")
        case 1:
            raise asyncio.CancelledError("invented in the filter")
        case 2:
            return True
        case 3:
            await asyncio.sleep(faults.random.uniform(0.5, 2.0) * scenario.ack_timeout)
        case _:
            await asyncio.sleep(faults.random.uniform(0.0, 2.0))
    return False
