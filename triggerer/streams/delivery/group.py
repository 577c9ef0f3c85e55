"""A group: one opening of a shared stream, its tasks and its end. When a group has ended, a new group replaces it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import aclosing
from datetime import datetime
from random import Random
from typing import Any

import anyio
import structlog

from triggerer.abc import (
    BaseEventTrigger,
    SharedStreamProducer,
    StoreMark,
    StreamState,
    is_acknowledged,
)
from triggerer.domain.events import EventSink, EventSource, WatcherRef
from triggerer.domain.watchers.parked import ParkedStore
from triggerer.domain.watchers.stream_names import readable_key
from triggerer.domain.watchers.stream_states import EventsWithState
from triggerer.errors import BrokerUnavailable, GroupEnded, PluginError
from triggerer.processes.own_lease import OwnLease
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.falling_behind.decision import FallingBehind
from triggerer.streams.catchup.falling_behind.queue_decision import FallingBehindInQueues
from triggerer.streams.clock import Clock
from triggerer.streams.delivery.counts import counting
from triggerer.streams.delivery.deadlines import Deadlines
from triggerer.streams.delivery.fan_out import FanOut
from triggerer.streams.delivery.flow import Flow
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lanes import Lanes
from triggerer.streams.delivery.ledger import Ledger
from triggerer.streams.delivery.pump import Pump
from triggerer.streams.delivery.rejected import Rejected
from triggerer.streams.delivery.slow_subscribers import SlowSubscribers
from triggerer.streams.delivery.staged_events import stage
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.delivery.subscribers import Subscribers
from triggerer.streams.pending_limit import PendingLimit
from triggerer.streams.settings import RuntimeSettings
from triggerer.streams.supervision.stream_state import has_state, no_state

_log = structlog.get_logger(__name__)


def works_beside_poll(producer: type[SharedStreamProducer]) -> bool:
    """Return whether the class overrides `run`, so that the group needs a task for `run`."""
    return producer.run is not SharedStreamProducer.run


def _ignore(_: GroupState) -> None:
    pass


def _ignore_blocked() -> None:
    pass


async def _at_once() -> None:
    pass


class Group:
    """One poll and its subscribers.

    `run` opens the stream, and raises an error when the stream has failed or `run` is cancelled. Subscribers may join
    before `run` and during it, but not once the group `is_ending`. Call every method on the event loop's thread, except
    `slow_watchers`.
    """

    def __init__(
        self,
        key: Hashable,
        opener: type[BaseEventTrigger],
        kwargs: dict[str, Any],
        *,
        name: str | None = None,
        sink: EventSink,
        clock: Clock,
        lease: OwnLease,
        settings: RuntimeSettings,
        pending: PendingLimit,
        backlogs: Backlogs,
        source_of: Callable[[WatcherRef], EventSource | None],
        name_of: Callable[[WatcherRef], str],
        now: Callable[[], datetime],
        parked: ParkedStore | None = None,
        load_state: Callable[[], Awaitable[StreamState]] = no_state,
        with_state: EventsWithState | None = None,
        dead_letters_at_bound: bool = False,
        random: Random | None = None,
        mark: StoreMark | None = None,
        before_poll: Callable[[], Awaitable[None]] = _at_once,
        on_open: Callable[[GroupState], None] = _ignore,
        on_blocked: Callable[[], None] = _ignore_blocked,
    ) -> None:
        self._opener = opener
        self._kwargs = kwargs
        lanes = Lanes(settings.max_outstanding_per_lane, settings.max_outstanding_bytes_per_lane)
        ledger = Ledger(lanes if is_acknowledged(opener) else None)
        self.key = key
        self.state = GroupState(
            key,
            name or readable_key(key),
            settings,
            clock,
            lease,
            lanes,
            ledger,
            backlogs,
            source_of,
            name_of,
            now,
            parked=parked,
            dead_letters_at_bound=dead_letters_at_bound,
            on_blocked=self._record_blockers,
        )
        self._load_state = load_state
        self._with_state = with_state
        self._sink = sink
        self._random = random or Random()
        self._mark = mark
        self._before_poll = before_poll
        self._on_open = on_open
        self._on_blocked = on_blocked
        self.subscribers = Subscribers(
            self.state, sink=sink, pending=pending, on_interrupted=self._cancel_later
        )
        falling_behind = FallingBehind(self.state, self.subscribers)
        rejected = Rejected(self.state, falling_behind.decide)
        lanes.decide = counting(self.state, rejected.decide)
        lanes.on_failed = falling_behind.record_redelivery
        self._slow_subscribers = SlowSubscribers(self.state, self.subscribers, pending, sink)
        self._flow = Flow(self.state, self.subscribers, self._slow_subscribers)
        self._fan_out = FanOut(self.state, self.subscribers, self._flow)
        self._pump = Pump(self.state)
        self._deadlines = Deadlines(self.state, self.subscribers, self._pump)
        self._queue_decisions: FallingBehindInQueues | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def is_ending(self) -> bool:
        """True if no subscriber can join any longer."""
        return self.state.is_ending

    @property
    def outstanding(self) -> int:
        """See `GroupState.outstanding`."""
        return self.state.outstanding

    def slow_watchers(self) -> list[str]:
        """Return the names of the triggers whose queue is full. Any thread may call this method."""
        return [one.name for one in self._slow_subscribers.full_subscribers()]

    # Life

    async def run(self) -> None:
        """Poll until the stream fails or the caller cancels; never returns normally.

        Raises:
            GroupEnded: The stream has ended; the error's `__cause__` tells why. Every subscriber has been ended with
                this error. No further message of this group is advanced.
        """
        key, state = self.key, self.state
        try:
            # Open the stream inside this `try`. So if the producer cannot be created, the group ends in the same way as
            # after a later failure.
            events = await self._open()
            _log.info(f"Shared stream group started key={key}", stream=state.name)
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._poll, events, name=f"shared-stream-poll[{key}]")
                if state.producer is not None and works_beside_poll(type(state.producer)):
                    name = f"shared-stream-run[{key}]"
                    tasks.start_soon(self._run_producer, state.producer, name=name)
                tasks.start_soon(self._pump.run, name=f"shared-stream-pump[{key}]")
                if state.producer is not None and state.producer.pauses_lanes:
                    tasks.start_soon(self._flow.run, name=f"shared-stream-flow[{key}]")
                if state.may_fall_behind:
                    tasks.start_soon(self._slow_subscribers.run, name=f"shared-stream-look[{key}]")
                if self._queue_decisions is not None:
                    tasks.start_soon(self._queue_decisions.run, name=f"shared-stream-store[{key}]")
                tasks.start_soon(self._watch_deadlines, name=f"shared-stream-deadlines[{key}]")
            # The poll and the pump never return. So the task group ends without an error only if plugin code has
            # cancelled its own task.
            raise PluginError(f"A task of the shared stream {state.name} has cancelled itself")
        except Exception as error:
            cause = _first_cause(error)
            raise self._announce_end(cause) from cause
        finally:
            state.is_ending = True
            self._tasks = None
            if state.staging is not None:
                state.staging.end()
            # Wake the callers that wait for the group to drain, because no further event will be advanced.
            state.progress.signal_room()
            await self._close_producer()

    async def _open(self) -> AsyncGenerator[Any, None]:
        opening = plugin_code(f"Opening the shared stream {self.state.name}")
        if self.state.is_acknowledged:
            with opening:
                producer = self._opener.create_shared_stream_producer(dict(self._kwargs))
            self.state.producer = producer
            if has_state(type(producer)):
                state = await self._load_state()
                if not self.state.may_act:
                    # Wait to be cancelled.
                    await anyio.sleep_forever()
                self.state.staging = stage(self.state, self._sink, self._with_state, state)
                with opening:
                    producer.use_state(state)
            with opening:
                if self._mark is not None:
                    producer.use_mark(self._mark)
                producer.use_standing(self._record_standing)
                events = producer.open_stream()
            self._decide_for_queue()
            self._on_open(self.state)
        else:
            with opening:
                events = self._opener.open_shared_stream(dict(self._kwargs))
        if not isinstance(events, AsyncGenerator):
            raise PluginError(
                f"The stream of {self._opener.__qualname__} is {type(events).__qualname__}",
                hint="write open_stream() and open_shared_stream() as async generators",
            )
        return events

    def _decide_for_queue(self) -> None:
        """If the upstream is a queue, use the decisions for queues, which store missed messages."""
        state = self.state
        if state.stores_messages and state.backlogs.is_enabled:
            self._queue_decisions = decisions = FallingBehindInQueues(
                state, self.subscribers, self._random
            )
            lanes = state.lanes
            rejected = Rejected(state, decisions.decide)
            lanes.decide = counting(state, rejected.decide)
            lanes.on_failed = decisions.record_redelivery
            lanes.decided_lanes = state.backlogs.by_lane

    def _record_blockers(self) -> None:
        self._flow.recheck()
        self._on_blocked()

    def _record_standing(self, lane: Hashable, why: str | None) -> None:
        standing = self.state.standing
        if standing.get(lane) == why:
            return
        if why is None:
            del standing[lane]
        else:
            standing[lane] = why
        self._on_blocked()

    async def _watch_deadlines(self) -> None:
        try:
            await self._deadlines.run()
        except BrokerUnavailable as error:
            # Show the error at once: the group may need long to end, for example if an advance in a thread does not
            # return.
            self._announce_end(error)
            raise

    def _announce_end(self, cause: BaseException) -> GroupEnded:
        """End every subscriber with the error that `run` is going to raise."""
        self.state.is_ending = True
        ended = GroupEnded(f"The shared stream {self.state.name} ended: {cause}", key=self.key)
        ended.__cause__ = cause
        self.subscribers.end(ended)
        return ended

    def _cancel_later(self, subscriber: Subscriber) -> None:
        """Cancel the filter of an ended subscriber, if the filter still runs after the close timeout."""
        if self._tasks is not None and not self.is_ending:
            self._tasks.start_soon(self._cancel_at, subscriber, self.state.clock.monotonic())

    async def _cancel_at(self, subscriber: Subscriber, now: float) -> None:
        await self.state.clock.sleep_until(now + self.state.settings.close_timeout)
        subscriber.cancel()

    def close(self) -> None:
        """Broadcast and advance no event from now on. The caller must cancel `run`."""
        self.state.is_closed = True
        self.state.is_ending = True
        self._flow.stop_pulling()

    def clear(self) -> None:
        """Drop all events of a group that has ended, so that their memory is free at once.

        The group itself is a reference cycle, and stays until the garbage collector runs.
        """
        self.state.ledger.clear()
        self.state.lanes.clear()
        self.state.newest.clear()

    async def _close_producer(self) -> None:
        producer = self.state.producer
        if producer is None:
            return
        timeout = self.state.settings.close_timeout
        with anyio.move_on_after(timeout, shield=True) as scope:
            try:
                with plugin_code(f"aclose() of the shared stream {self.state.name}"):
                    await producer.aclose()
            except Exception:
                # The group has ended anyway. The log says that the producer could not be closed.
                _log.exception("closing a producer failed", stream=self.state.name)
        if scope.cancelled_caught:
            _log.error("closing a producer timed out", stream=self.state.name, seconds=timeout)

    async def _run_producer(self, producer: SharedStreamProducer) -> None:
        try:
            with plugin_code(f"run() of the shared stream {self.state.name}"):
                await producer.run()
            raise PluginError(f"run() of {type(producer).__qualname__} returned")
        except Exception:
            self.state.is_ending = True
            raise

    async def _poll(self, events: AsyncGenerator[Any, None]) -> None:
        await self._before_poll()
        try:
            with plugin_code(f"The poll of the shared stream {self.state.name}"):
                async with aclosing(events):
                    if self.state.is_acknowledged:
                        stores_messages = self._queue_decisions is not None
                        await self._fan_out.run_acknowledged(
                            events, stores_messages=stores_messages
                        )
                    else:
                        await self._fan_out.run(events)
            raise PluginError(f"The stream of {self._opener.__qualname__} returned")
        except Exception:
            self.state.is_ending = True
            raise

    # Stopping

    def stop_pulling(self) -> None:
        """Begin a shutdown: pull no further event, and let outstanding events resolve."""
        self._flow.stop_pulling()

    def await_members(self) -> None:
        """In ack mode, if no member is present, broadcast no event until a member has joined."""
        if not len(self.subscribers):
            self._flow.await_members()

    def mark_joined(self) -> None:
        """Record that an absent member has joined."""
        self.state.progress.signal()

    def start_pulling(self) -> None:
        """Pull again, because a member has joined."""
        self._flow.start_pulling()
        self.state.progress.signal()

    async def wait_until_drained(self) -> None:
        """Wait until no event is outstanding, `start_pulling` is called, or the group has ended.

        This wait may be longer than the ack timeout, for example while a lane waits for the store.
        """
        await self._flow.wait_until_drained()


def _first_cause(error: BaseException) -> BaseException:
    """Return the first error of a task group. The other tasks were cancelled because of this error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
