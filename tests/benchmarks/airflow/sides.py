"""Runs one producer and its filters in our runtime and in Airflow's.

Airflow's service also logs each event and sends messages to its supervisor. This module leaves that work out, because
it compares only the runtimes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import airflow.triggers.base as theirs_base
import airflow.triggers.shared_stream as theirs_streams

from triggerer import abc as ours_abc
from triggerer.domain.events import EventSource, HasPayload, PendingEvent, WatcherRef
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.streams.clock import SystemClock

_BURST: Final = 128
MANY: Final = 2_000_000
ACK_TIMEOUT: Final = 5.0
"""The ack timeout in seconds, by the benchmark's clock, which moves only when the benchmark sets it. Airflow looks for
overdue events ten times in this many seconds of real time."""


@dataclass(slots=True)
class Work:
    """The load: the messages, the behaviour of the filters, and the progress. `Work.current` is the load in use."""

    events: int
    lanes: int = 1
    fires: Callable[[int], bool] = lambda number: False
    """True for the numbers from which a filter derives an event."""
    stuck_subscribers: frozenset[int] = frozenset()
    """The numbers of the filters that stay at their first event for ever."""
    one_by_one_from: int | None = None
    """From this number on, a message is sent only after the message before was advanced."""
    subscribers: int = 1
    pairs: Sequence[tuple[int, int]] | None = None
    derived: dict[type[Any], Sequence[Any]] = field(default_factory=dict)
    advanced: int = 0
    read: int = 0
    started: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    current: ClassVar[Work]


class _Upstream:
    """The producer's code, for both runtimes. It sends the messages of `Work.current` and counts their advances."""

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        work = Work.current
        pairs = work.pairs or [(number, number) for number in range(work.events)]
        alone = MANY if work.one_by_one_from is None else work.one_by_one_from
        for pair in pairs:
            if pair[0] > alone:
                await work.moved.wait()
            work.moved.clear()
            yield pair
            if pair[0] % _BURST == _BURST - 1:
                await asyncio.sleep(0)
        work.sent.set()
        await asyncio.Event().wait()

    def get_advance_lane(self, broker_payload: int) -> int:
        work = Work.current
        alone = work.one_by_one_from
        return -1 if alone is not None and broker_payload >= alone else broker_payload % work.lanes

    async def advance(self, batch: Sequence[Any]) -> None:
        work = Work.current
        work.advanced += len(batch)
        work.moved.set()
        if work.advanced >= work.events:
            work.done.set()


class _Filter:
    """The trigger's code, for both runtimes. Its filter does what `Work.current` says."""

    event_type: ClassVar[Any]
    producer_type: ClassVar[Any]

    def __init__(self, *, number: int, key: int = 0) -> None:
        self.number = number
        self.key = key

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmark", {"number": self.number, "key": self.key}

    def shared_stream_key(self) -> Any:
        return ("benchmark", self.key)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[int]) -> AsyncIterator[Any]:
        work = Work.current
        fires, made = work.fires, self.event_type
        ready = work.derived.get(made)
        work.started += 1
        async for number in shared_stream:
            if self.number in work.stuck_subscribers:
                await asyncio.Event().wait()
            if fires(number):
                yield made(number) if ready is None else ready[number]


class _Acknowledged(_Filter):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        return cls.producer_type()


class _FastFilter(_Filter):
    """The trigger on the fast path. The fast path has no `advance`, so each filter reports when it reads the last
    message.
    """

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[int]:
        async for event, _ in _Upstream().open_stream():
            yield event

    async def filter_shared_stream(self, shared_stream: AsyncIterator[int]) -> AsyncIterator[Any]:
        work = Work.current
        last, fires, made = work.events - 1, work.fires, self.event_type
        async for number in shared_stream:
            if number == last:
                work.read += 1
                if work.read == work.subscribers:
                    work.done.set()
            if fires(number):
                yield made(number)


class OurProducer(_Upstream, ours_abc.SharedStreamProducer):
    pass


class OurFilter(_Acknowledged, ours_abc.BaseEventTrigger):
    event_type = ours_abc.TriggerEvent
    producer_type = OurProducer


class OurFastFilter(_FastFilter, ours_abc.BaseEventTrigger):
    event_type = ours_abc.TriggerEvent


class TheirProducer(_Upstream, theirs_streams.SharedStreamProducer):
    pass


class TheirFilter(_Acknowledged, theirs_base.BaseEventTrigger):
    event_type = theirs_base.TriggerEvent
    producer_type = TheirProducer

    async def run(self) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield


class TheirFastFilter(_FastFilter, theirs_base.BaseEventTrigger):
    event_type = theirs_base.TriggerEvent
    run = TheirFilter.run


class JumpingClock:
    """A clock that moves only when a benchmark sets it, so that no ack times out while the benchmark sends events."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep_until(self, deadline: float) -> None:
        while self.now < deadline:  # noqa: ASYNC110  (as Airflow's own scan does)
            await asyncio.sleep(0.1)


class Side(Protocol):
    """A runtime with its subscribers, ours or Airflow's."""

    clock: JumpingClock

    @property
    def outstanding(self) -> int: ...

    async def leave(self, number: int) -> None:
        """Remove the subscriber with this number on purpose, as for a deleted watcher."""


class _OurSink:
    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.waiting: list[PendingEvent] = []

    is_full = False

    async def wait_for_room(self) -> None: ...

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        if self.keeps:
            self.waiting.append(event)

    async def confirm(self) -> None:
        while True:
            await asyncio.sleep(0)
            waiting, self.waiting = self.waiting, []
            for event in waiting:
                event.complete(None)


class _Ours:
    def __init__(self, manager: Manager, hosted: list[Any], clock: JumpingClock) -> None:
        self.clock = clock
        self._manager = manager
        self._hosted = hosted

    @property
    def outstanding(self) -> int:
        return sum(s.group.outstanding for s in self._manager.streams.values() if s.group)

    async def leave(self, number: int) -> None:
        self._manager.remove(self._hosted[number], on_purpose=True)


@asynccontextmanager
async def ours(
    keys: Sequence[int], *, confirms: bool, is_fast: bool = False, is_real_time: bool = False
) -> AsyncIterator[Side]:
    """Subscribe one filter for each of `keys`."""
    kind: Any = OurFastFilter if is_fast else OurFilter
    sink = _OurSink(keeps=confirms)
    settings = RuntimeSettings(
        ack_timeout=300.0 if is_real_time else ACK_TIMEOUT,
        subscriber_queue_size=MANY,
        max_outstanding=MANY,
        max_outstanding_per_lane=MANY,
        max_pending=MANY,
    )
    confirming = asyncio.ensure_future(sink.confirm()) if confirms else None

    def spec(number: int, key: int) -> TriggerSpec:
        kwargs = {"number": number, "key": key}
        source = EventSource((WatcherRef(number, 0),), None)
        return TriggerSpec(f"filter {number}", lambda: kind(**kwargs), kwargs, source)

    clock = JumpingClock()
    context = RuntimeContext(
        sink,
        clock=SystemClock() if is_real_time else clock,
        settings=settings,
        restarts=False,
    )
    async with Manager(context) as manager:
        hosted = manager.add([spec(number, key) for number, key in enumerate(keys)])
        yield _Ours(manager, hosted, clock)
        await _end([confirming] if confirming else [])


class _Theirs:
    def __init__(self, *, is_real_time: bool) -> None:
        self.clock = JumpingClock()
        self.manager: Any = theirs_streams.SharedStreamManager(
            max_subscriber_queue=MANY,
            ack_timeout=300.0 if is_real_time else ACK_TIMEOUT,
            _now=time.monotonic if is_real_time else self.clock.monotonic,
        )
        self.unconfirmed: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def outstanding(self) -> int:
        return sum(len(group._outstanding) for group in self.manager._groups.values())

    async def leave(self, number: int) -> None:
        self.tasks[number].cancel()

    async def drive(self, number: int, trigger: Any, *, keeps: bool) -> None:
        """Run a trigger as Airflow's `TriggerRunner.run_trigger` does, without the work that is not about streams."""
        key = trigger.shared_stream_key()
        try:
            stream = self.manager.subscribe(trigger_id=number, trigger=trigger, key=key)
            async for _ in trigger.filter_shared_stream(stream):
                seq = self.manager.bind_pending_event(trigger_id=number, key=key)
                if keeps and seq is not None:
                    self.unconfirmed.append(seq)
        finally:
            await self.manager.unsubscribe(number, key)

    async def confirm(self) -> None:
        while True:
            await asyncio.sleep(0)
            waiting, self.unconfirmed = self.unconfirmed, []
            if waiting:
                self.manager.confirm_persisted(waiting)


@asynccontextmanager
async def theirs(
    keys: Sequence[int], *, confirms: bool, is_fast: bool = False, is_real_time: bool = False
) -> AsyncIterator[Side]:
    """Subscribe one filter for each of `keys`."""
    kind: Any = TheirFastFilter if is_fast else TheirFilter
    side = _Theirs(is_real_time=is_real_time)
    for number, key in enumerate(keys):
        driven = side.drive(number, kind(number=number, key=key), keeps=confirms)
        side.tasks.append(asyncio.ensure_future(driven))
    confirming = [asyncio.ensure_future(side.confirm())] if confirms else []
    try:
        yield side
    finally:
        await side.manager.stop_all()
        await _end([*side.tasks, *confirming])


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        # Some measurements make a subscriber fail, and its error must not end the benchmark.
        with suppress(asyncio.CancelledError, Exception):
            await task


OpenSide = Callable[..., AbstractAsyncContextManager[Side]]
SIDES: Final[dict[str, OpenSide]] = {"ours": ours, "Airflow": theirs}
