"""One watcher reads again, alone, what it has missed, and goes on live without a seam (contract, rule 18)."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import anyio
import structlog

from triggerer.abc import BaseEventTrigger, current_subscriber
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.lane_positions import Position
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.processing.derived_events import Deriving
from triggerer.streams.catchup.processing.filter_deadline import FilterDeadline
from triggerer.streams.catchup.processing.in_flight import (
    Taken,
    TakenFromLane,
    TakenMessages,
    Trial,
)
from triggerer.streams.catchup.processing.outcomes import Settlement
from triggerer.streams.catchup.processing.parking import SettingAside
from triggerer.streams.catchup.processing.probes import Trials
from triggerer.streams.catchup.reading.backlog_reader import MissedMessages
from triggerer.streams.catchup.reading.handover import Seam
from triggerer.streams.catchup.reading.queue_reader import QueueMessage, begin_giving
from triggerer.streams.catchup.reading.reader_slots import LaneReaders
from triggerer.streams.catchup.reading.stored_messages import KeptMessages
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.filtering import filtered
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import HostedTrigger

_log = structlog.get_logger(__name__)

_WARN_EVERY_S: Final = 1.0
_STORE_EVERY_S: Final = 2.0
"""A position that moves without a derived event is stored so often."""


class CatchingUp:
    """Serves one watcher in the lanes of one group in which it is behind; `run` returns when there are none.

    The filter is one of its own. What it has resolved moves `Lag.read_to`, what is durable moves `Lag.position`, which
    is stored. If the filter raises, only its open message has failed: that lane waits for a growing delay, and the
    filter is made anew for the others at once. A message that alone cannot be taken is set aside. The filter is also
    given the messages that were set aside before and are replayed.

    Args:
        readers: How many lanes of the stream may be read beside the poll at one time.
        on_change: Called when what is to be shown of the watcher has changed.
        tasks: Of the group: what its last messages need may take longer than the catching up.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        hosted: HostedTrigger,
        state: GroupState,
        context: RuntimeContext,
        readers: LaneReaders,
        on_change: Callable[[WatcherRef], None],
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self.watcher = watcher
        self.error: BaseException | None = None
        """Why its last attempt failed; None once a message has passed since."""
        self._look_error: Exception | None = None
        self._is_told = False
        """Whether `restart` was called during this attempt,"""
        self._open_when_told: Taken | None = None
        """with this message open."""
        self._hosted = hosted
        self._state = state
        self._context = context
        self._on_change = on_change
        taken = self._taken = TakenMessages()
        self._seam = Seam(
            watcher,
            hosted,
            state,
            partial(on_change, watcher),
            self._forget,
            self._note_looked,
            context.restart_backoff(),
        )
        self._missed = MissedMessages(
            watcher, state, context, readers, self._seam, self._pass_over, self._note_failure
        )
        fence = hosted.source.fence
        self._kept = (
            None
            if context.parked is None or fence is None or state.keeps_messages
            else KeptMessages(watcher, fence, state, context.parked)
        )
        self._trials = Trials(state, self._missed.queue)
        self._setting_aside = SettingAside(watcher, hosted.name, state, context, tasks)
        self._settlement = Settlement(
            hosted.name,
            state,
            context,
            taken,
            self._missed,
            self._trials,
            self._setting_aside,
            self._kept,
            self._note_failure,
            self._note_success,
        )
        self._life = anyio.CancelScope()
        self._backoff = context.restart_backoff()
        self._may_warn_at = -math.inf
        self._deadline = FilterDeadline(
            hosted.name, taken, context.clock, context.settings.ack_timeout
        )
        self._deriving = Deriving(
            watcher, hosted.name, state, context, taken, self._settlement, self._deadline
        )

    @property
    def name(self) -> str:
        return self._hosted.name

    @property
    def open_message(self) -> Taken | None:
        """What its filter was given last, until it moves past it."""
        return self._taken.open

    def wake(self) -> None:
        """Look again: it has fallen behind in another lane, or something has arrived."""
        self._missed.wake()

    def offer(self, lag: Lag) -> None:
        """It is behind in this lane, or there may be more in it."""
        self._missed.offer(lag)

    def look_for_kept(self) -> None:
        """There are messages to be replayed."""
        if self._kept is not None:
            self._kept.look()
            self._missed.interrupt()

    def restart(self) -> None:
        """Try again now what has failed, and once more what is under way, should it fail: it began before."""
        self._is_told, self._open_when_told = True, self._taken.open
        self._missed.restart()

    # Its life

    async def run(self) -> None:
        """Catch up until it is behind nowhere, or cancelled. No error of a plugin is raised."""
        for lag in self._state.lags.behind(self.watcher.watcher_id):
            self._take_over(lag)
            if lag.kept is not None:
                # It reads all lanes together, from the first message on.
                lag.kept.begin()
        # All: of those whose rows were stored in one commit, only some were offered since it was made.
        for lag in self._state.lags.to_catch_up(self.watcher.watcher_id):
            self._missed.offer(lag)
        with self._life:
            async with anyio.create_task_group() as tasks:
                self._missed.tasks = tasks
                tasks.start_soon(self._deadline.watch)
                while self._has_work():
                    await self._missed.wait_for_turn()
                    await self._attempt()
                tasks.cancel_scope.cancel()

    def _take_over(self, lag: Lag) -> None:
        """Read this lane from now on: what another has read and not stored is read again.

        Otherwise what the other reader stores would move the position past what is read here and not durable yet.
        """
        before, lag.taken_by = lag.taken_by, self._taken
        if before is not None and before is not self._taken:
            before.forget(lag)
            if lag.kept is not None or lag.read_to != lag.position:
                # What was counted is of a message behind the one with which it begins. In a queue each row has its own.
                lag.failures = 0
            # What was known of the end is old.
            lag.read_to, lag.end = lag.position, None
            if lag.kept is not None:
                lag.kept.under_way.clear()
                lag.kept.read_again()

    def stop(self) -> None:
        """Its watcher is gone, or has another trigger now."""
        self._life.cancel()

    @property
    def _is_behind(self) -> bool:
        return self._state.lags.may_catch_up(self.watcher.watcher_id)

    def _has_work(self) -> bool:
        return self._is_behind or self.has_kept

    @property
    def has_kept(self) -> bool:
        """Whether there may be messages that were set aside and are to be given to it again."""
        return self._kept is not None and self._kept.are_waiting

    async def _attempt(self) -> None:
        started = self._context.clock.monotonic()
        trigger: BaseEventTrigger | None = None
        self._is_told = False
        try:
            trigger = await self._make()
            await self._run_filter(trigger)
            if self._has_work():
                # It returned; it is started again, as a live one is.
                await self._wait_before_next(started)
        except Exception as error:
            # The plugin's: it is shown, and tried again.
            failed, self._taken.open = self._taken.open, None
            began_before = self._is_told and failed is self._open_when_told
            self._note_failure(error)
            if failed is not None:
                await self._fail(failed, error, started)
                if began_before and isinstance(failed, TakenFromLane) and not failed.is_parked:
                    self._missed.resume(failed.lag)
            elif self._context.restarts:
                for lag in self._state.lags.to_catch_up(self.watcher.watcher_id):
                    # How far it is behind by now: no message moves its positions.
                    self._state.store_position(lag)
                await self._wait_before_next(started)
            elif not began_before:
                self._hosted.is_held = True
                self._life.cancel()
        finally:
            self._taken.open = None
            if trigger is not None:
                await self._hosted.clean_up(trigger)

    async def _fail(self, failed: Taken, error: Exception, started: float) -> None:
        try:
            self._settlement.fail(failed, error)
        except Exception as raised:
            # It is shown as well, and ends this attempt: not the stream, with all that it serves.
            self._note_failure(raised)
            self._settlement.read_again(failed)
            await self._wait_before_next(started)

    def _forget(self, lag: Lag) -> None:
        """What was taken from a lane, or tried for it, counts no more; nor what the lane waits for because of that."""
        self._taken.forget(lag)
        self._trials.forget(lag)
        self._missed.resume(lag)

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
        now = self._context.clock.monotonic()
        if str(error) != str(self.error) and now >= self._may_warn_at:
            self._may_warn_at = now + _WARN_EVERY_S
            _log.warning("a watcher fails to catch up", watcher=self.name, error=repr(error))
        self.error = error
        self._settlement.note_failure()
        self._on_change(self.watcher)

    def _note_looked(self, error: Exception | None) -> None:
        """It is known where the lanes end, or why not: until then it can go on live where something is broadcast."""
        if error is not None:
            self._look_error = error
            self._note_failure(error)
        elif self.error is self._look_error:
            self._note_success()
        self._missed.wake()

    def _pass_over(self, lag: Lag, position: Position) -> None:
        self._settlement.pass_over(lag, position)

    def _note_success(self) -> None:
        if self.error is not None:
            self.error = None
            self._backoff.reset()
            self._on_change(self.watcher)

    # The filter

    async def _run_filter(self, trigger: BaseEventTrigger) -> None:
        current_subscriber.set(self)
        with (
            plugin_code(f"The filter of {self.name}, which catches up"),
            self._deadline.limit(),
        ):
            stream = self._events()
            async with aclosing(stream), aclosing(filtered(trigger, stream)) as events:
                await self._deriving.drive(events, self._hosted.source.fence)
        if self._taken.open is not None:
            # It returned: what it pulled counts as accepted.
            self._resolve(self._taken.open)

    def reject_open_event(self, reason: str | None = None) -> bool:
        """See `triggerer.abc.reject_shared_stream_event`; may be called from another thread."""
        taken = self._taken.open
        if taken is None:
            return False
        taken.is_rejected, taken.rejected_because = True, reason
        return True

    # A message's way

    async def _events(self) -> AsyncGenerator[Any, None]:
        messages, resolve = self._taken, self._settlement.resolve
        monotonic, producer = self._context.clock.monotonic, self._state.producer
        deadline = self._deadline
        assert producer is not None
        key_of = producer.get_idempotency_key
        while self._has_work():
            kept = self._kept
            if kept is not None and kept.are_waiting and (again := await kept.next()) is not None:
                self._open(again)
                yield again.event
                self._resolve(again)
            lag = await self._next_lane()
            if lag is None:
                continue
            if self._settlement.is_trial_due(lag):
                try:
                    candidate = await self._trials.next(lag)
                except Exception as error:
                    # As where its messages cannot be read: it waits, and the others go on.
                    self._missed.postpone(lag)
                    self._note_failure(error)
                    continue
                if candidate is not None:
                    trial = Trial(lag, candidate)
                    self._open(trial)
                    yield trial.event
                    self._resolve(trial)
                    continue
            async with aclosing(self._missed.slice(lag)) as bursts:
                async for burst in bursts:
                    # Of all that is done here, only this is done for each message.
                    for message in burst:
                        if isinstance(message, QueueMessage) and not self._may_give(lag, message):
                            break
                        messages.open = taken = TakenFromLane(lag, message, key_of)
                        deadline.opened_at = now = monotonic()
                        if now - lag.stored_at >= _STORE_EVERY_S:
                            self._state.store_position(lag)
                        yield message.event
                        messages.open = None
                        if not resolve(taken):
                            break
                    else:
                        if not self._seam.go_live_if_caught_up(lag):
                            continue
                    break

    def _may_give(self, lag: Lag, message: QueueMessage) -> bool:
        """Whether this message comes next; False if others are tried first, or if it was kept meanwhile."""
        if message.failures and not lag.failures:
            # Before a restart.
            lag.failures = message.failures
            if self._settlement.is_trial_due(lag):
                return False
        return begin_giving(lag, message)

    async def _next_lane(self) -> Lag | None:
        """Whose turn it is; None after all of them have waited, or where something else is to be given first."""
        self._seam.begin_recreated()
        lag = self._missed.next_lane()
        if lag is not None and lag.taken_by is not self._taken:
            self._take_over(lag)
        assert self._missed.tasks is not None
        self._seam.look_if_due(self._missed.tasks)
        if lag is None and self._is_behind and not self.has_kept:
            await self._missed.wait_for_turn()
        return lag

    def _open(self, taken: Taken) -> None:
        self._taken.open = taken
        self._deadline.opened_at = self._context.clock.monotonic()

    def _resolve(self, taken: Taken) -> None:
        """The filter has moved past the open message."""
        self._taken.open = None
        self._settlement.resolve(taken)
