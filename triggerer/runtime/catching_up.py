"""One watcher reads again, alone, what it has missed, and goes on live without a seam (contract, rule 18)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import structlog
from anyio.lowlevel import checkpoint

from triggerer.abc import BaseEventTrigger, TriggerEvent, current_subscriber
from triggerer.backoff import Backoff
from triggerer.domain.events import EventSource, WatcherRef
from triggerer.domain.lane_positions import Position, following, is_before, is_same_log
from triggerer.errors import AckTimeout, LeaseLost, PluginError
from triggerer.runtime.cancellation import plugin_code
from triggerer.runtime.context import RuntimeContext
from triggerer.runtime.filtering import filtered
from triggerer.runtime.hosted import HostedTrigger
from triggerer.runtime.lags import Lag
from triggerer.runtime.log_reader import LogReader
from triggerer.runtime.pending_limit import PendingLimit
from triggerer.runtime.recent import Message
from triggerer.runtime.state import GroupState
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

_SLICE: Final = 2_000
"""Messages of one lane before another lane of the same watcher has its turn."""
_SLICE_S: Final = 5.0
_BURST: Final = 16
"""Messages before the rest of the event loop has its turn: what is behind gives way to what is live."""
_MOST_PENDING: Final = 2_000
"""Derived and not durable. A bound of its own: who catches up takes no room from its siblings."""
_IDLE_S: Final = 0.5
"""How long a lane without a message keeps its reader while others wait for one."""
_STORE_EVERY_S: Final = 2.0
"""A position that moves without a derived event is stored so often."""
_LOOK_AT_ENDS_EVERY_S: Final = 10.0
_END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)


class _Taken:
    """A message that was given to the filter, until all that derives from it is durable."""

    __slots__ = ("has_derived", "is_dropped", "lag", "message", "unresolved")

    def __init__(self, lag: Lag, message: Message) -> None:
        self.lag = lag
        self.message = message
        self.unresolved = 1
        """One until the filter has moved past it, and one for each derived event that is not durable."""
        self.has_derived = False
        self.is_dropped = False
        """Whether it is read again: it failed, or lies behind one that did."""


class _Derived:
    """Implements `triggerer.domain.events.PendingEvent`."""

    __slots__ = ("_catching_up", "_taken")

    def __init__(self, catching_up: CatchingUp, taken: _Taken) -> None:
        self._catching_up = catching_up
        self._taken = taken

    def complete(self, error: Exception | None) -> None:
        self._catching_up.note_stored(self._taken, error)


class _Attempts:
    """When a lane may be read again whose message has failed."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.not_before = -math.inf

    def wait(self, context: RuntimeContext) -> None:
        """It has failed: wait for a growing delay, or for `CatchingUp.restart` where nothing starts again by itself."""
        delay = self.backoff.next_delay() if context.restarts else math.inf
        self.not_before = context.clock.monotonic() + delay


class CatchingUp:
    """Serves one watcher in the lanes of one group in which it is behind; `run` returns when there are none.

    One lane at a time is read, in turns, so that a lane that waits holds up no other. The filter is one of its own.
    What it has resolved moves `Lag.read_to`, what is durable moves `Lag.position`, which is stored. If the filter
    raises, only its open message has failed: that lane waits for a growing delay, and the filter is made anew for the
    others at once.

    Args:
        readers: How many lanes of the stream may be read beside the poll at one time.
        on_change: Called when what is to be shown of the watcher has changed.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        hosted: HostedTrigger,
        state: GroupState,
        context: RuntimeContext,
        readers: anyio.Semaphore,
        on_change: Callable[[WatcherRef], None],
    ) -> None:
        self.watcher = watcher
        self.error: BaseException | None = None
        """Why its last attempt failed; None once a message has passed since."""
        self._hosted = hosted
        self._state = state
        self._context = context
        self._readers = readers
        self._on_change = on_change
        self._life = anyio.CancelScope()
        self._pending = PendingLimit(_MOST_PENDING)
        self._taken: dict[Lag, deque[_Taken]] = {}
        self._attempts: dict[Hashable, _Attempts] = {}
        self._backoff = context.restart_backoff()
        self._wake = AutoResetEvent()
        self._looked_at = -math.inf
        self._open: _Taken | None = None
        self._opened_at = 0.0
        self._ordinal = 0
        self._last_lane: Lag | None = None
        self._overdue: AckTimeout | None = None
        self._scope: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stored_at: dict[Lag, float] = {}

    @property
    def name(self) -> str:
        return self._hosted.name

    def wake(self) -> None:
        """Look again: it has fallen behind in another lane, or something has arrived."""
        self._wake.set()

    def restart(self) -> None:
        """Try again now what has failed."""
        for attempts in self._attempts.values():
            attempts.not_before = -math.inf
        self._wake.set()

    # Its life

    async def run(self) -> None:
        """Catch up until it is behind nowhere, or cancelled. No error of a plugin is raised."""
        for lag in self._state.lags.behind(self.watcher.watcher_id):
            # What the group before has read and not stored is read again, and what was known of the end is old.
            lag.read_to, lag.end = lag.position, None
        with self._life:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._watch_deadline)
                while self._behind():
                    await self._wait_for_turn()
                    await self._attempt()
                self._tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Its watcher is gone, or has another trigger now."""
        self._life.cancel()

    def _behind(self) -> list[Lag]:
        return [lag for lag in self._state.lags.behind(self.watcher.watcher_id) if lag.is_stored]

    async def _attempt(self) -> None:
        started = self._context.clock.monotonic()
        trigger: BaseEventTrigger | None = None
        try:
            trigger = await self._make()
            await self._run_filter(trigger)
            if self._behind():
                # It returned; it is started again, as a live one is.
                await self._wait_before_next(started)
        except Exception as error:
            # The plugin's: it is shown, and tried again.
            failed, self._open = self._open, None
            if failed is not None:
                self._rewind(failed)
            self._note_failure(error)
            if failed is None and self._context.restarts:
                await self._wait_before_next(started)
            elif failed is None:
                self._hosted.is_held = True
                self._life.cancel()
        finally:
            self._open = None
            if trigger is not None:
                await self._hosted.clean_up(trigger)

    async def _wait_before_next(self, started: float) -> None:
        clock = self._context.clock
        now = clock.monotonic()
        await clock.sleep_until(now + self._backoff.next_delay(now - started))

    async def _make(self) -> BaseEventTrigger:
        spec = self._hosted.spec
        if spec.load is not None:
            load = spec.load()
            if not load.is_settled:
                await load.wait_until_settled()
        with plugin_code(f"Making {self.name}"):
            return spec.make()

    def _note_failure(self, error: BaseException) -> None:
        if str(error) != str(self.error):
            _log.warning("a watcher fails to catch up", watcher=self.name, error=repr(error))
        self.error = error
        self._on_change(self.watcher)

    async def _look_at_ends(self) -> None:
        """Find out where the lanes end: who has read so far, and has missed no broadcast since, has caught up."""
        # Only of those that were behind before: what is broadcast from then on is kept, see `Recent`.
        behind = self._behind()
        ends = await self._find_positions(_END_OF_TIME)
        self._looked_at = self._context.clock.monotonic()
        first: Mapping[Hashable, Position] | None = None
        for lag in behind:
            end = ends.get(lag.lane)
            if end is None or lag.is_gone or lag.is_live:
                continue
            if not is_same_log(end, lag.read_to):
                first = first or await self._find_positions(None)
                self._begin_anew(lag, first.get(lag.lane, end))
            lag.end, lag.head = end, end[1]
            self._state.lags.move(lag)

    async def _find_positions(self, start: datetime | None) -> Mapping[Hashable, Position]:
        assert self._state.producer is not None
        with plugin_code(f"find_positions() of the shared stream {self._state.key!r}"):
            return await self._state.producer.find_positions(start)

    def _begin_anew(self, lag: Lag, first: Position) -> None:
        _log.error(
            "a lane was made anew while a watcher was behind in it: what it had missed is gone, and it is read from"
            " its beginning",
            watcher=self.name,
            lane=lag.stored_as,
            position=lag.read_to,
        )
        self._taken.pop(lag, None)
        lag.position = lag.read_to = first

    # The filter

    async def _run_filter(self, trigger: BaseEventTrigger) -> None:
        current_subscriber.set(self)
        self._overdue = None
        with (
            plugin_code(f"The filter of {self.name}, which catches up"),
            anyio.CancelScope() as self._scope,
        ):
            stream = self._events()
            async with aclosing(stream), aclosing(filtered(trigger, stream)) as events:
                await self._drive(events)
        if self._overdue is not None:
            raise self._overdue
        if self._open is not None:
            # It returned: what it pulled counts as accepted.
            self._resolve()

    async def _drive(self, events: AsyncGenerator[TriggerEvent, None]) -> None:
        state, sink, pending = self._state, self._context.sink, self._pending
        assert state.producer is not None
        async for event in events:
            if not isinstance(event, TriggerEvent):
                raise PluginError(
                    f"The filter of {self.name} yielded {type(event).__qualname__}, not a TriggerEvent"
                )
            taken = self._open
            if taken is None or taken.is_dropped or taken.lag.is_gone or not state.may_act:
                # What derives from no message the live filter yields as well.
                continue
            key = state.producer.get_idempotency_key(taken.message.payload)
            taken.unresolved += 1
            taken.has_derived = True
            pending.count += 1
            source = EventSource((self.watcher,), taken.lag.fence)
            sink.submit_nowait(_Derived(self, taken), event, source, key, self._ordinal)
            self._ordinal += 1
            if sink.is_full:
                await sink.wait_for_room()
            if pending.count >= pending.limit:
                await pending.wait_for_room()

    async def _watch_deadline(self) -> None:
        """End the filter if it does not move past a message in time, counted from when it was given it."""
        clock, timeout = self._context.clock, self._context.settings.ack_timeout
        while True:
            now = clock.monotonic()
            due = now + timeout if self._open is None else self._opened_at + timeout
            await clock.sleep_until(due)
            late = clock.monotonic() - due
            await clock.sleep_until(clock.monotonic() + late)
            if self._open is not None and self._opened_at + timeout <= due:
                self._overdue = AckTimeout(
                    f"{self.name} did not resolve a message within {timeout:g} s while it caught up",
                    hint="its filter is stuck or too slow; raise shared_stream_ack_timeout if that is its nature",
                )
                assert self._scope is not None
                self._scope.cancel()
                self._opened_at = clock.monotonic()

    def reject_open_event(self) -> bool:
        """See `triggerer.abc.reject_shared_stream_event`; may be called from another thread."""
        taken = self._open
        if taken is None:
            return False
        _log.warning(
            "a message was rejected by a watcher that catches up",
            watcher=self.name,
            lane=taken.lag.stored_as,
            position=taken.message.position,
        )
        return True

    # What it reads

    async def _events(self) -> AsyncGenerator[Any, None]:
        while True:
            if self._must_look_at_ends():
                await self._look_at_ends()
            lag = self._next_lane()
            if lag is None:
                if not self._behind():
                    return
                await self._wait_for_turn()
                continue
            async with aclosing(self._slice(lag)) as messages:
                async for message in messages:
                    self._give(lag, message)
                    yield message.event
                    if not self._resolve():
                        break

    def _must_look_at_ends(self) -> bool:
        behind = self._behind()
        now = self._context.clock.monotonic()
        return any(lag.end is None for lag in behind) or (
            bool(behind) and now - self._looked_at >= _LOOK_AT_ENDS_EVERY_S
        )

    def _next_lane(self) -> Lag | None:
        """The lane that may be read and was not read last; None if all wait."""
        now = self._context.clock.monotonic()
        behind = self._behind()
        for lag in behind:
            self._go_live_if_caught_up(lag)
        ready = [
            lag
            for lag in behind
            if not lag.is_live and self._attempts_of(lag).not_before <= now and not lag.is_gone
        ]
        if not ready:
            return None
        if self._last_lane in ready:
            at = ready.index(self._last_lane) + 1
            ready = ready[at:] + ready[:at]
        self._last_lane = ready[0]
        return ready[0]

    async def _wait_for_turn(self) -> None:
        """Wait until a lane may be read again, or something has changed."""
        now = self._context.clock.monotonic()
        due = min((self._attempts_of(lag).not_before for lag in self._behind()), default=now)
        if due <= now:
            await checkpoint()
            return
        async with anyio.create_task_group() as tasks:

            async def until_due() -> None:
                await self._context.clock.sleep_until(due)
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_due)
            await self._wake.wait()
            tasks.cancel_scope.cancel()

    async def _slice(self, lag: Lag) -> AsyncGenerator[Message, None]:
        """Some messages of one lane, from memory where it is near the head, else from the log."""
        recent = self._state.recent_of(lag.lane)
        if recent.covers(lag.read_to):
            for number in range(_SLICE):
                message = recent.after(lag.read_to)
                if message is None:
                    break
                yield message
                if number % _BURST == _BURST - 1:
                    await checkpoint()
        else:
            async with self._readers:
                assert self._tasks is not None
                assert self._state.producer is not None
                reader = LogReader(self._state.producer, lag.lane, lag.read_to, self.wake)
                scope = anyio.CancelScope()
                self._tasks.start_soon(_run_in, scope, reader)
                try:
                    async with aclosing(self._from_log(lag, reader)) as messages:
                        async for message in messages:
                            yield message
                finally:
                    scope.cancel()
        if not lag.is_live and not lag.is_gone:
            self._store(lag)

    async def _from_log(self, lag: Lag, reader: LogReader) -> AsyncGenerator[Message, None]:
        given = 0
        clock = self._context.clock
        until = clock.monotonic() + _SLICE_S
        while given < _SLICE and clock.monotonic() < until and not (lag.is_gone or lag.is_live):
            message = reader.take()
            if message is None:
                if reader.error is not None:
                    self._wait_before(lag, reader.error)
                    return
                if not await self._wait_for_message(lag):
                    return
                continue
            given += 1
            yield message
            if self._state.recent_of(lag.lane).covers(lag.read_to):
                # From here on it is in memory.
                return
            if given % _BURST == 0:
                await checkpoint()

    async def _wait_for_message(self, lag: Lag) -> bool:
        """Wait for the log or the poll. False if the lane has caught up, or others are to have their turn."""
        if self._go_live_if_caught_up(lag):
            return False
        recent = self._state.recent_of(lag.lane)
        if recent.covers(lag.read_to):
            return False
        recent.wake_once(self)
        others = [one for one in self._behind() if one is not lag]
        with anyio.move_on_after(_IDLE_S if others else None) as waiting:
            await self._wake.wait()
        if waiting.cancelled_caught:
            self._attempts_of(lag).not_before = self._context.clock.monotonic() + _IDLE_S
            return False
        return not (lag.is_gone or lag.is_live)

    def _wait_before(self, lag: Lag, error: Exception) -> None:
        """The log cannot be read now: try again after a growing delay."""
        self._attempts_of(lag).wait(self._context)
        self._note_failure(error)

    def _attempts_of(self, lag: Lag) -> _Attempts:
        attempts = self._attempts.get(lag.lane)
        if attempts is None:
            attempts = self._attempts[lag.lane] = _Attempts(self._context.restart_backoff())
        return attempts

    # A message's way

    def _give(self, lag: Lag, message: Message) -> None:
        taken = _Taken(lag, message)
        self._taken.setdefault(lag, deque()).append(taken)
        self._open, self._ordinal = taken, 0
        self._opened_at = self._context.clock.monotonic()

    def _resolve(self) -> bool:
        """The filter has moved past the open message; False if it is to be read again, with what follows it."""
        taken, self._open = self._open, None
        assert taken is not None
        if taken.is_dropped:
            return False
        lag = taken.lag
        lag.read_to = following(taken.message.position)
        taken.unresolved -= 1
        attempts = self._attempts.get(lag.lane)
        if attempts is not None and attempts.backoff.failures:
            attempts.backoff.reset()
        if self.error is not None:
            self.error = None
            self._backoff.reset()
            self._on_change(self.watcher)
        self._move(lag)
        return not (lag.is_gone or self._go_live_if_caught_up(lag))

    def note_stored(self, taken: _Taken, error: Exception | None) -> None:
        """The store has answered for an event that derives from a message."""
        self._pending.count -= 1
        if self._pending.is_awaited:
            self._pending.note_room()
        taken.unresolved -= 1
        if taken.is_dropped:
            return
        if error is None:
            self._move(taken.lag)
        elif not isinstance(error, LeaseLost):
            self._note_failure(error)
            self._rewind(taken)

    def _move(self, lag: Lag) -> None:
        """Move the position past what is dealt with."""
        queue = self._taken.get(lag)
        has_derived = False
        while queue and not queue[0].unresolved:
            taken = queue.popleft()
            lag.position = following(taken.message.position)
            has_derived |= taken.has_derived
        if has_derived:
            self._store(lag)
        now = self._context.clock.monotonic()
        if now - self._stored_at.get(lag, -math.inf) >= _STORE_EVERY_S:
            self._store(lag)
        if lag.is_live:
            self._state.end_if_advanced(lag)

    def _store(self, lag: Lag) -> None:
        if lag.is_gone:
            return
        self._stored_at[lag] = self._context.clock.monotonic()
        newest = self._state.recent_of(lag.lane).newest
        if newest is not None:
            lag.head = newest[1] + 1
        self._state.lags.move(lag)

    def _rewind(self, taken: _Taken) -> None:
        """A message has failed: its lane waits, and is then read again from there."""
        lag = taken.lag
        queue = self._taken.get(lag, deque())
        while queue and taken in queue:
            queue.pop().is_dropped = True
        taken.is_dropped = True
        if lag.is_gone:
            return
        self._state.lags.leave_live(lag)
        lag.read_to = taken.message.position
        attempts = self._attempts_of(lag)
        attempts.wait(self._context)

    def _go_live_if_caught_up(self, lag: Lag) -> bool:
        """Let the live filter have what is broadcast from now on, if nothing lies between. Synchronous."""
        state, subscriber = self._state, self._hosted.subscriber
        if lag.is_live or lag.is_gone or not lag.is_stored:
            return lag.is_live
        if subscriber is None or not subscriber.is_present or subscriber.waits_for(lag.lane):
            return False
        newest = state.recent_of(lag.lane).newest
        if newest is None:
            end = lag.end
            is_at_head = (
                end is not None
                and is_same_log(end, lag.read_to)
                and not is_before(lag.read_to, end)
            )
        else:
            is_at_head = is_before(newest, lag.read_to)
        if not is_at_head:
            return False
        state.lags.go_live(lag)
        self._store(lag)
        state.end_if_advanced(lag)
        self._on_change(self.watcher)
        return True


async def _run_in(scope: anyio.CancelScope, reader: LogReader) -> None:
    with scope:
        await reader.run()
