"""One watcher reads again, alone, what it has missed, and goes on live without a seam (contract, rule 18)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import anyio
import structlog

from triggerer.abc import BaseEventTrigger, TriggerEvent, current_subscriber
from triggerer.domain.events import EventSource, WatcherRef
from triggerer.domain.lane_positions import following
from triggerer.errors import AckTimeout, LeaseLost, PluginError
from triggerer.runtime.cancellation import plugin_code
from triggerer.runtime.context import RuntimeContext
from triggerer.runtime.filtering import filtered
from triggerer.runtime.hosted import HostedTrigger
from triggerer.runtime.lags import Lag
from triggerer.runtime.missed import MissedMessages
from triggerer.runtime.pending_limit import PendingLimit
from triggerer.runtime.recent import Message
from triggerer.runtime.seam import Seam
from triggerer.runtime.state import GroupState

_log = structlog.get_logger(__name__)

_MOST_PENDING: Final = 2_000
"""Derived and not durable. A bound of its own: who catches up takes no room from its siblings."""
_STORE_EVERY_S: Final = 2.0
"""A position that moves without a derived event is stored so often."""


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


class CatchingUp:
    """Serves one watcher in the lanes of one group in which it is behind; `run` returns when there are none.

    The filter is one of its own. What it has resolved moves `Lag.read_to`, what is durable moves `Lag.position`, which
    is stored. If the filter raises, only its open message has failed: that lane waits for a growing delay, and the
    filter is made anew for the others at once.

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
        self._on_change = on_change
        self._seam = Seam(watcher, hosted, state, self._note_live, self._forget_taken)
        self._missed = MissedMessages(
            watcher, state, context, readers, self._seam, self._note_failure
        )
        self._life = anyio.CancelScope()
        self._pending = PendingLimit(_MOST_PENDING)
        self._taken: dict[Lag, deque[_Taken]] = {}
        self._backoff = context.restart_backoff()
        self._open: _Taken | None = None
        self._opened_at = 0.0
        self._ordinal = 0
        self._overdue: AckTimeout | None = None
        self._scope: anyio.CancelScope | None = None

    @property
    def name(self) -> str:
        return self._hosted.name

    def wake(self) -> None:
        """Look again: it has fallen behind in another lane, or something has arrived."""
        self._missed.wake()

    def restart(self) -> None:
        """Try again now what has failed."""
        self._missed.restart()

    # Its life

    async def run(self) -> None:
        """Catch up until it is behind nowhere, or cancelled. No error of a plugin is raised."""
        for lag in self._state.lags.behind(self.watcher.watcher_id):
            # What the group before has read and not stored is read again, and what was known of the end is old.
            lag.read_to, lag.end = lag.position, None
        with self._life:
            async with anyio.create_task_group() as tasks:
                self._missed.tasks = tasks
                tasks.start_soon(self._watch_deadline)
                while self._behind():
                    await self._missed.wait_for_turn()
                    await self._attempt()
                tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Its watcher is gone, or has another trigger now."""
        self._life.cancel()

    def _behind(self) -> list[Lag]:
        return self._state.lags.to_catch_up(self.watcher.watcher_id)

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

    def _note_live(self) -> None:
        self._on_change(self.watcher)

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

    # A message's way

    async def _events(self) -> AsyncGenerator[Any, None]:
        while True:
            if self._seam.must_look():
                await self._seam.look()
            lag = self._missed.next_lane()
            if lag is None:
                if not self._behind():
                    return
                await self._missed.wait_for_turn()
                continue
            async with aclosing(self._missed.slice(lag)) as messages:
                async for message in messages:
                    self._give(lag, message)
                    yield message.event
                    if not self._resolve():
                        break

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
        self._missed.note_success(lag)
        if self.error is not None:
            self.error = None
            self._backoff.reset()
            self._on_change(self.watcher)
        self._move(lag)
        return not (lag.is_gone or self._seam.go_live_if_caught_up(lag))

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
        now = self._context.clock.monotonic()
        if has_derived or now - lag.stored_at >= _STORE_EVERY_S:
            self._state.store_position(lag)
        if lag.is_live:
            self._state.end_if_advanced(lag)

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
        self._missed.postpone(lag)

    def _forget_taken(self, lag: Lag) -> None:
        self._taken.pop(lag, None)
