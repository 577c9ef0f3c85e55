"""Catching up: a second filter reads one watcher's backlogs until the watcher is live again (contract, rule 18)."""

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
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.processing.derived_events import CatchUpDeriver
from triggerer.streams.catchup.processing.filter_deadline import FilterDeadline
from triggerer.streams.catchup.processing.in_flight import (
    LaneMessageInFlight,
    MessageInFlight,
    MessagesInFlight,
    Probe,
)
from triggerer.streams.catchup.processing.outcomes import Outcomes
from triggerer.streams.catchup.processing.parking import Parking
from triggerer.streams.catchup.processing.probes import Probes
from triggerer.streams.catchup.reading.backlog_reader import BacklogReader
from triggerer.streams.catchup.reading.handover import Handover
from triggerer.streams.catchup.reading.queue_reader import QueueMessage, begin_giving
from triggerer.streams.catchup.reading.reader_slots import ReaderSlots
from triggerer.streams.catchup.reading.replayed_messages import ReplayedMessages
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.filtering import filtered
from triggerer.streams.supervision.member import Member

_log = structlog.get_logger(__name__)

_WARN_EVERY_S: Final = 1.0
_STORE_EVERY_S: Final = 2.0
"""While the position moves without derived events, it is stored at this interval."""


class CatchUp:
    """Catches up for one watcher in one group. `run` returns once the watcher is behind in no lane.

    A second filter processes the watcher's backlogs, and the parked messages that an operator replays:

    - When the filter moves past a message or rejects it, `Backlog.cursor` moves.
    - When the message's events are durable, `Backlog.position` moves.
    - If the filter raises, only its open message has failed. The message's lane waits for a growing delay, and the
      other lanes continue at once with a new filter.
    - A message that fails too often is parked.

    Args:
        readers: The slots for reading lanes of the stream's log. They limit how many lanes are read at the same time
            for watchers that are behind. Live reading needs no slot.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        member: Member,
        state: GroupState,
        context: RuntimeContext,
        readers: ReaderSlots,
        on_change: Callable[[WatcherRef], None],
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self.watcher = watcher
        self.error: BaseException | None = None
        """The error of the last attempt. None once a message has passed."""
        self._lookup_error: Exception | None = None
        self._was_restarted = False
        """Whether `restart` was called during this attempt."""
        self._open_at_restart: MessageInFlight | None = None
        """The message that was open when `restart` was called."""
        self._member = member
        self._state = state
        self._context = context
        self._on_change = on_change
        in_flight = self._in_flight = MessagesInFlight()
        self._handover = Handover(
            watcher,
            member,
            state,
            partial(on_change, watcher),
            self._forget,
            self._record_lookup,
            context.restart_backoff(),
        )
        self._reader = BacklogReader(
            watcher, state, context, readers, self._handover, self._pass_over, self._record_failure
        )
        fence = member.source.fence
        self._replays = (
            None
            if context.parked is None or fence is None or state.stores_messages
            else ReplayedMessages(watcher, fence, state, context.parked)
        )
        self._probes = Probes(state, self._reader.queue)
        self._parking = Parking(watcher, member.name, state, context, tasks)
        self._outcomes = Outcomes(
            member.name,
            state,
            context,
            in_flight,
            self._reader,
            self._probes,
            self._parking,
            self._replays,
            self._record_failure,
            self._record_success,
        )
        self._life = anyio.CancelScope()
        self._backoff = context.restart_backoff()
        self._may_warn_at = -math.inf
        self._deadline = FilterDeadline(
            member.name, in_flight, context.clock, context.settings.ack_timeout
        )
        self._deriving = CatchUpDeriver(
            watcher, member.name, state, context, in_flight, self._outcomes, self._deadline
        )

    @property
    def name(self) -> str:
        return self._member.name

    @property
    def open_message(self) -> MessageInFlight | None:
        """The message that the filter has open."""
        return self._in_flight.open

    def wake(self) -> None:
        """Let the reader look at all lanes again: the watcher fell behind in another lane, or a message has arrived."""
        self._reader.wake()

    def offer(self, backlog: Backlog) -> None:
        """Let the reader read a lane in its turn: the watcher fell behind in it, or the lane has more messages."""
        self._reader.offer(backlog)

    def read_replayed_messages(self) -> None:
        """Read the parked messages that an operator replays, before further messages of the backlogs."""
        if self._replays is not None:
            self._replays.restart_reading()
            self._reader.interrupt()

    def restart(self) -> None:
        """Try failed messages again now.

        If the message that is open now fails, it is retried at once, because its attempt began before this call.
        """
        self._was_restarted, self._open_at_restart = True, self._in_flight.open
        self._reader.restart()

    # Life

    async def run(self) -> None:
        """Catch up until the watcher is behind in no lane and no replayed message waits, or until `stop` is called.

        Errors of plugins are not raised.
        """
        for backlog in self._state.backlogs.behind(self.watcher.watcher_id):
            self._take_over(backlog)
            if backlog.stored_lane is not None:
                # The rows of all lanes are read together, from the first row on.
                backlog.stored_lane.begin()
        # Offer all lanes to the reader. Usually `offer` is called when a lane's position becomes durable, but this
        # object may have been made after that.
        for backlog in self._state.backlogs.to_catch_up(self.watcher.watcher_id):
            self._reader.offer(backlog)
        with self._life:
            async with anyio.create_task_group() as tasks:
                self._reader.tasks = tasks
                tasks.start_soon(self._deadline.watch)
                while self._has_work():
                    await self._reader.wait_for_turn()
                    await self._attempt()
                tasks.cancel_scope.cancel()

    def _take_over(self, backlog: Backlog) -> None:
        """Take the lane over from an earlier `CatchUp`. Messages whose events are not durable are read again.

        The earlier reading is forgotten, so that a late answer of the store cannot move the position past these
        messages.
        """
        before, backlog.in_flight_by = backlog.in_flight_by, self._in_flight
        if before is not None and before is not self._in_flight:
            before.forget(backlog)
            if backlog.stored_lane is not None or backlog.cursor != backlog.position:
                # In a log, `failures` belongs to the message at the old cursor, but the new reading begins before this
                # message. In a queue, the count comes with the row of each message.
                backlog.failures = 0
            # Look up the end again, because the lane may have grown.
            backlog.cursor, backlog.end = backlog.position, None
            if backlog.stored_lane is not None:
                backlog.stored_lane.in_flight_keys.clear()
                backlog.stored_lane.read_again()

    def stop(self) -> None:
        """End the catch-up, because the watcher was deleted or has another trigger."""
        self._life.cancel()

    @property
    def _is_behind(self) -> bool:
        return self._state.backlogs.may_catch_up(self.watcher.watcher_id)

    def _has_work(self) -> bool:
        return self._is_behind or self.has_replays

    @property
    def has_replays(self) -> bool:
        """Whether parked messages may wait for their replay."""
        return self._replays is not None and self._replays.are_waiting

    async def _attempt(self) -> None:
        started = self._context.clock.monotonic()
        trigger: BaseEventTrigger | None = None
        self._was_restarted = False
        try:
            trigger = await self._make()
            await self._run_filter(trigger)
            if self._has_work():
                # The filter returned. Start it again, like a live filter.
                await self._wait_before_next(started)
        except Exception as error:
            # The plugin failed: show the error and try again.
            failed, self._in_flight.open = self._in_flight.open, None
            began_before = self._was_restarted and failed is self._open_at_restart
            self._record_failure(error)
            if failed is not None:
                await self._fail(failed, error, started)
                if (
                    began_before
                    and isinstance(failed, LaneMessageInFlight)
                    and not failed.is_being_parked
                ):
                    self._reader.resume(failed.backlog)
            elif self._context.restarts:
                for backlog in self._state.backlogs.to_catch_up(self.watcher.watcher_id):
                    # The filter failed without an open message, so no message moves the positions. Store the positions
                    # nevertheless, so that users see how far the watcher is behind.
                    self._state.store_position(backlog)
                await self._wait_before_next(started)
            elif not began_before:
                self._member.awaits_restart = True
                self._life.cancel()
        finally:
            self._in_flight.open = None
            if trigger is not None:
                await self._member.clean_up(trigger)

    async def _fail(self, failed: MessageInFlight, error: Exception, started: float) -> None:
        try:
            self._outcomes.fail(failed, error)
        except Exception as raised:
            # The failure could not be recorded, for instance because the producer raised. Show this error too, and end
            # only this attempt, not the whole stream.
            self._record_failure(raised)
            self._outcomes.read_again(failed)
            await self._wait_before_next(started)

    def _forget(self, backlog: Backlog) -> None:
        """Forget a lane's messages in flight, its probes, and its delay."""
        self._in_flight.forget(backlog)
        self._probes.forget(backlog)
        self._reader.resume(backlog)

    async def _wait_before_next(self, started: float) -> None:
        clock = self._context.clock
        now = clock.monotonic()
        await clock.sleep_until(now + self._backoff.next_delay(now - started))

    async def _make(self) -> BaseEventTrigger:
        spec = self._member.spec
        if spec.load is not None:
            load = spec.load()
            if not load.is_settled:
                await load.wait_until_settled()
        with plugin_code(f"Making {self.name}"):
            return spec.make()

    def _record_failure(self, error: BaseException) -> None:
        now = self._context.clock.monotonic()
        if str(error) != str(self.error) and now >= self._may_warn_at:
            self._may_warn_at = now + _WARN_EVERY_S
            _log.warning("a watcher fails to catch up", watcher=self.name, error=repr(error))
        self.error = error
        self._outcomes.record_failure()
        self._on_change(self.watcher)

    def _record_lookup(self, error: Exception | None) -> None:
        """Record that the ends of the lanes were looked up, or why the look-up failed.

        While the end of a lane is unknown, the watcher goes live in the lane only once a message is broadcast.
        """
        if error is not None:
            self._lookup_error = error
            self._record_failure(error)
        elif self.error is self._lookup_error:
            self._record_success()
        self._reader.wake()

    def _pass_over(self, backlog: Backlog, position: Position) -> None:
        self._outcomes.pass_over(backlog, position)

    def _record_success(self) -> None:
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
                await self._deriving.drive(events, self._member.source.fence)
        if self._in_flight.open is not None:
            # The filter returned, so it has passed the message that it pulled.
            self._resolve(self._in_flight.open)

    def reject_open_event(self, reason: str | None = None) -> bool:
        """See `triggerer.abc.reject_shared_stream_event`; may be called from another thread."""
        in_flight = self._in_flight.open
        if in_flight is None:
            return False
        in_flight.is_rejected, in_flight.rejected_because = True, reason
        return True

    # Messages

    async def _events(self) -> AsyncGenerator[Any, None]:
        messages, resolve = self._in_flight, self._outcomes.resolve
        monotonic, producer = self._context.clock.monotonic, self._state.producer
        deadline = self._deadline
        assert producer is not None
        key_of = producer.get_idempotency_key
        while self._has_work():
            replays = self._replays
            if (
                replays is not None
                and replays.are_waiting
                and (replayed := await replays.next()) is not None
            ):
                self._open(replayed)
                yield replayed.event
                self._resolve(replayed)
            backlog = await self._next_lane()
            if backlog is None:
                continue
            if self._outcomes.is_probe_due(backlog):
                try:
                    candidate = await self._probes.next(backlog)
                except Exception as error:
                    # Let the lane wait as if it could not be read. The other lanes continue.
                    self._reader.postpone(backlog)
                    self._record_failure(error)
                    continue
                if candidate is not None:
                    probe = Probe(backlog, candidate)
                    self._open(probe)
                    yield probe.event
                    self._resolve(probe)
                    continue
            async with aclosing(self._reader.slice(backlog)) as bursts:
                async for burst in bursts:
                    # The code before this loop runs for each turn of a lane. The loop runs for each message, so it must
                    # be fast.
                    for message in burst:
                        if isinstance(message, QueueMessage) and not self._may_give(
                            backlog, message
                        ):
                            break
                        messages.open = in_flight = LaneMessageInFlight(backlog, message, key_of)
                        deadline.opened_at = now = monotonic()
                        if now - backlog.stored_at >= _STORE_EVERY_S:
                            self._state.store_position(backlog)
                        yield message.event
                        messages.open = None
                        if not resolve(in_flight):
                            break
                    else:
                        if not self._handover.go_live_if_caught_up(backlog):
                            continue
                    break

    def _may_give(self, backlog: Backlog, message: QueueMessage) -> bool:
        """Return whether the filter receives this message now. False: a probe is due first, or see `begin_giving`."""
        if message.failures and not backlog.failures:
            # An earlier group counted these failures, and stored their number with the message.
            backlog.failures = message.failures
            if self._outcomes.is_probe_due(backlog):
                return False
        return begin_giving(backlog, message)

    async def _next_lane(self) -> Backlog | None:
        """Return the lane whose turn it is. If no lane is ready, wait for a turn and return None.

        The result is also None if a replayed message comes first.
        """
        self._handover.begin_recreated()
        backlog = self._reader.next_lane()
        if backlog is not None and backlog.in_flight_by is not self._in_flight:
            self._take_over(backlog)
        assert self._reader.tasks is not None
        self._handover.look_up_ends_if_due(self._reader.tasks)
        if backlog is None and self._is_behind and not self.has_replays:
            await self._reader.wait_for_turn()
        return backlog

    def _open(self, in_flight: MessageInFlight) -> None:
        self._in_flight.open = in_flight
        self._deadline.opened_at = self._context.clock.monotonic()

    def _resolve(self, in_flight: MessageInFlight) -> None:
        """Resolve the open message, which the filter has moved past."""
        self._in_flight.open = None
        self._outcomes.resolve(in_flight)
