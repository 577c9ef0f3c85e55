"""A group's life: open the stream, fan out, supervise, end. One group serves one shared-stream key once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from typing import Any

import anyio
import structlog

from triggerer.abc import BaseEventTrigger, SharedStreamProducer
from triggerer.domain.events import EventSink, EventSource
from triggerer.errors import GroupEnded, PluginError
from triggerer.runtime.backlog import Backlog
from triggerer.runtime.cancellation import plugin_code
from triggerer.runtime.clock import Clock
from triggerer.runtime.deadlines import watch_deadlines
from triggerer.runtime.flow import Flow
from triggerer.runtime.lanes import Lanes
from triggerer.runtime.ledger import Ledger
from triggerer.runtime.pump import Pump
from triggerer.runtime.selection import Selection
from triggerer.runtime.settings import RuntimeSettings
from triggerer.runtime.subscriber import Subscriber
from triggerer.runtime.turns import Turns
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)


def is_acknowledged(opener: type[BaseEventTrigger]) -> bool:
    """Whether the class overrides `create_shared_stream_producer`: ack mode."""
    default = BaseEventTrigger.create_shared_stream_producer
    ours = opener.create_shared_stream_producer
    return getattr(ours, "__func__", ours) is not getattr(default, "__func__", None)


class Group:
    """One poll and its subscribers.

    `run` opens the stream and lives until it fails or is cancelled. Subscribers join before or while it runs; none may
    join once it `is_ending`. All methods that are not coroutines belong to the event loop's thread.
    """

    def __init__(
        self,
        key: Hashable,
        opener: type[BaseEventTrigger],
        kwargs: dict[str, Any],
        *,
        sink: EventSink,
        clock: Clock,
        settings: RuntimeSettings,
        backlog: Backlog,
    ) -> None:
        self.key = key
        self.backlog = backlog
        self.clock = clock
        self.settings = settings
        self._opener = opener
        self._kwargs = kwargs
        self.sink = sink
        self.is_acknowledged = is_acknowledged(opener)
        self.lanes = Lanes(settings.max_outstanding_per_lane)
        self.ledger = Ledger(self.lanes if self.is_acknowledged else None)
        self.selection = Selection()
        self.subscribers: dict[Subscriber, None] = {}
        self.departed: dict[Subscriber, None] = {}
        """Those who left while the store still owed them answers."""
        self.producer: SharedStreamProducer | None = None
        self.is_ending = False
        self.is_closed = False
        self.error: BaseException | None = None
        self.is_progress_noted = False
        """Whether the pump and a pausing poll know that somebody moved; who moves looks here before it tells them."""
        self._progress = AutoResetEvent()
        self._readers: dict[Subscriber, None] = {}
        self.flow = Flow(self)
        self.pump = Pump(self)
        self._tasks: anyio.abc.TaskGroup | None = None

    # Membership

    def subscribe(
        self,
        trigger: BaseEventTrigger,
        *,
        name: str,
        source: EventSource,
        was_absent: bool = False,
        on_refused: Callable[[Exception], None] | None = None,
    ) -> Subscriber:
        """Let `trigger` answer for everything that is broadcast from now on.

        Args:
            on_refused: Called with the reason when an event of it will not be durable; synchronous, and must not raise.
        Raises:
            GroupEnded: The group is ending; wait for the next one.
        """
        if self.is_ending:
            raise GroupEnded(f"The shared stream {self.key!r} is ending", key=self.key)
        subscriber = Subscriber(self, trigger, name=name, source=source, on_refused=on_refused)
        self.ledger.join(subscriber, was_absent=was_absent)
        subscriber.start_at(subscriber.done)
        self.subscribers[subscriber] = None
        return subscriber

    def fail(self, subscriber: Subscriber, error: BaseException) -> None:
        """Fail what the subscriber has not resolved, and count it as absent from now on."""
        if subscriber.is_present:
            self.ledger.fail(subscriber, subscriber.open_entry)
            self._part(subscriber)
            subscriber.interrupt(error)

    def leave(self, subscriber: Subscriber) -> None:
        """Take the subscriber out on purpose: what it pulled is accepted once durable, what it never pulled fails."""
        if subscriber.is_present:
            self.ledger.leave(subscriber, subscriber.open_entry)
            self._part(subscriber)

    def add_absent(self) -> None:
        """Count what is broadcast from now on as failed for a member that is known and cannot join yet."""
        self.ledger.add_absent()

    def remove_absent(self) -> None:
        """Forget a member that failed, or never joined."""
        self.ledger.remove_absent()

    def _part(self, subscriber: Subscriber) -> None:
        del self.subscribers[subscriber]
        subscriber.may_read = False
        self._readers.pop(subscriber, None)
        self.selection.remove(subscriber)
        if subscriber.oldest_unsettled is not None:
            self.departed[subscriber] = None
        self.note_progress()

    def reject(self, subscriber: Subscriber) -> None:
        """Reject the event that the subscriber's filter has open."""
        entry = subscriber.open_entry
        if entry is not None and subscriber.is_present:
            self.ledger.reject(subscriber, entry)
            self.note_progress()

    # What subscribers tell

    def wake_when_readable(self, subscriber: Subscriber) -> None:
        """Wake the subscriber at the next broadcast, once."""
        self._readers[subscriber] = None

    def note_progress(self) -> None:
        """Somebody moved. Wakes the pump and a pausing poll once, however many move in this turn of the loop."""
        self.is_progress_noted = True
        self._progress.set()
        self.note_room()

    def note_room(self) -> None:
        """Something was advanced or read. Wakes a pausing poll."""
        self.flow.note_room()

    async def wait_for_progress(self) -> None:
        """Wait until `note_progress` was called since this returned last; for the pump alone."""
        if self._progress.is_set:
            # Without a checkpoint: the pump has its own.
            self._progress.clear()
        else:
            await self._progress.wait()
        self.is_progress_noted = False

    def forget(self, departed: Subscriber) -> None:
        """The store owes nothing any more to a subscriber that is not present."""
        self.departed.pop(departed, None)

    def cancel_later(self, scope: anyio.CancelScope) -> None:
        """Cancel a filter that was told of its end and is still there when the close timeout has passed."""
        if self._tasks is not None and not self.is_ending:
            self._tasks.start_soon(self._cancel_at, scope, self.clock.monotonic())

    async def _cancel_at(self, scope: anyio.CancelScope, now: float) -> None:
        await self.clock.sleep_until(now + self.settings.close_timeout)
        scope.cancel()

    # Life

    async def run(self) -> None:
        """Poll until the stream fails or the caller cancels; never returns normally.

        Raises:
            GroupEnded: With what ended the stream as its cause. Nothing past the last successful advance was told
                to the broker; every subscriber has been ended with this error.
        """
        try:
            # Opened before the tasks are: a producer that cannot be made ends the group like one that fails later.
            with plugin_code(f"Opening the shared stream {self.key!r}"):
                events = self._open()
            _log.info(f"Shared stream group started key={self.key}")
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._poll, events, name=f"shared-stream-poll[{self.key}]")
                tasks.start_soon(self.pump.run, name=f"shared-stream-pump[{self.key}]")
                if self.producer is not None and self.producer.pauses_lanes:
                    tasks.start_soon(self.flow.run, name=f"shared-stream-flow[{self.key}]")
                tasks.start_soon(watch_deadlines, self, name=f"shared-stream-deadlines[{self.key}]")
            # None of them returns. What plugin code does to its task may end one where nothing is there to tell.
            raise PluginError(f"A task of the shared stream {self.key!r} was cancelled by itself")
        except Exception as error:
            cause = _first_cause(error)
            raise self.announce_end(cause) from cause
        finally:
            self.is_ending = True
            self._tasks = None
            # For those who wait until it is drained: nothing more is going to be.
            self.note_room()
            await self._close_producer()

    def _open(self) -> AsyncGenerator[Any, None]:
        if self.is_acknowledged:
            self.producer = self._opener.create_shared_stream_producer(dict(self._kwargs))
            events = self.producer.open_stream()
        else:
            events = self._opener.open_shared_stream(dict(self._kwargs))
        if not isinstance(events, AsyncGenerator):
            raise PluginError(
                f"The stream of {self._opener.__qualname__} is {type(events).__qualname__}",
                hint="write open_stream() and open_shared_stream() as async generators",
            )
        return events

    def announce_end(self, cause: BaseException) -> GroupEnded:
        """End every subscriber with what `run` is going to raise."""
        self.is_ending = True
        self.error = cause
        ended = GroupEnded(f"The shared stream {self.key!r} ended: {cause}", key=self.key)
        ended.__cause__ = cause
        for subscriber in list(self.subscribers):
            subscriber.interrupt(ended)
        return ended

    def close(self) -> None:
        """Broadcast and advance nothing more from now on; the caller cancels `run`.

        Cancelling alone does not do it: a task that was woken before has its turn first.
        """
        self.is_closed = True
        self.begin_end()
        self.flow.close()

    def let_go(self) -> None:
        """Keep no message: nothing of the group runs any more, and as a cycle it waits for the collector."""
        self.ledger.clear()
        self.lanes.clear()

    def begin_end(self) -> None:
        """From here on nobody can join; called where a failure is first seen, before anything is awaited."""
        self.is_ending = True

    async def _close_producer(self) -> None:
        if self.producer is None:
            return
        with anyio.move_on_after(self.settings.close_timeout, shield=True) as scope:
            try:
                with plugin_code(f"aclose() of the shared stream {self.key!r}"):
                    await self.producer.aclose()
            except Exception:
                # The group is over either way; what could not be given back is for the log.
                _log.exception("closing a producer failed", key=str(self.key))
        if scope.cancelled_caught:
            _log.error(
                "closing a producer timed out",
                key=str(self.key),
                seconds=self.settings.close_timeout,
            )

    # Fan-out

    async def _poll(self, events: AsyncGenerator[Any, None]) -> None:
        try:
            with plugin_code(f"The poll of the shared stream {self.key!r}"):
                async with aclosing(events):
                    if self.is_acknowledged:
                        await self._fan_out_acknowledged(events)
                    else:
                        await self._fan_out(events)
            raise PluginError(f"The stream of {self._opener.__qualname__} returned")
        except Exception:
            self.begin_end()
            raise

    async def _fan_out(self, events: AsyncGenerator[Any, None]) -> None:
        ledger, flow, selecting = self.ledger, self.flow, self.selection.tables
        async for event in events:
            has_looked = ledger.head >= flow.look_at
            if has_looked:
                await flow.look()
            ledger.broadcast(event)
            if selecting:
                self._offer(event)
            if self._readers:
                self._wake_readers()
            elif not self.subscribers:
                self.note_progress()
            if has_looked:
                # Nobody redelivers what is pulled here, so a stop is made before the next pull.
                await flow.wait_while_stopping()

    async def _fan_out_acknowledged(self, events: AsyncGenerator[Any, None]) -> None:
        ledger, lanes, flow = self.ledger, self.lanes, self.flow
        selecting = self.selection.tables
        producer = self.producer
        assert producer is not None
        get_lane = producer.get_advance_lane
        turns = Turns()
        now = 0.0
        async for event, payload in events:
            if ledger.head >= flow.look_at:
                await flow.look(payload)
            if turns.has_turned:
                # What is broadcast in one turn of the loop is broadcast at one time.
                turns.watch()
                now = self.clock.monotonic()
            ledger.broadcast_in_lane(event, payload, get_lane(payload), now)
            if selecting:
                self._offer(event)
            if self._readers:
                self._wake_readers()
            elif not self.subscribers:
                self.note_progress()
            if lanes.filled is not None:
                await flow.note_filled()

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.wake()

    def _offer(self, event: Any) -> None:
        self.selection.offer(event, self.ledger.head - 1)
        if not self.is_progress_noted:
            # Perhaps it concerns nobody, who would say so.
            self.note_progress()

    def stop_pulling(self) -> None:
        """First stage of a shutdown: pull nothing more, let what is outstanding resolve."""
        self.flow.stop_pulling()

    def start_pulling(self) -> None:
        """Somebody came after all."""
        self.flow.start_pulling()
        self.note_progress()

    async def wait_until_drained(self) -> None:
        """Wait until nothing is outstanding, `start_pulling` is called, or the group has ended.

        In ack mode the ack timeout bounds that.
        """
        await self.flow.wait_until_drained()

    @property
    def outstanding(self) -> int:
        """Broadcast and not yet advanced; on the fast path what a subscriber has not read."""
        return self.lanes.outstanding if self.is_acknowledged else len(self.ledger.events)


def _first_cause(error: BaseException) -> BaseException:
    """What happened first in a task group: its other tasks were only cancelled for it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
