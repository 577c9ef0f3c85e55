"""Reads one watcher's backlogs, lane by lane: new messages from memory, older ones from the log or the store."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.lane_positions import Position, is_before, is_same_log
from triggerer.errors import StoreError
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.reading.handover import Handover
from triggerer.streams.catchup.reading.lane_tail import LogMessage
from triggerer.streams.catchup.reading.lane_turns import LaneTurns
from triggerer.streams.catchup.reading.log_reader import LogReader
from triggerer.streams.catchup.reading.queue_reader import QueueMessage, QueueReader
from triggerer.streams.catchup.reading.reader_slots import ReaderSlots, Reading
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group_state import GroupState
from triggerer.synchronization import AutoResetEvent

_SLICE: Final = 2_000
"""The most messages that are read from memory or the store in one turn of a lane. Then the next lane has its turn."""
_SLICE_OF_LOG: Final = 50_000
"""The most messages that are read from the log in one turn: many, because opening the log costs as much as reading
thousands of messages.
"""
_SLICE_S: Final = 5.0
_BURST: Final = 16
"""The most messages in a burst from memory or the store, and the size of the first burst from a log.

After each burst other tasks run, so that live delivery is not delayed.
"""
_BURST_S: Final = 0.00005
"""50 µs: how long the filter should need for a burst from a log. The size of the next burst is adapted to this time,
up to `_MOST_IN_BURST`.
"""
_MOST_IN_BURST: Final = 128
_IDLE_S: Final = 0.5
"""How long a lane without messages keeps its turn while other lanes wait.

If no other lane waits, the lane keeps its turn, and the reader checks at this interval whether the watcher can go live.
"""
_LONGEST_REST_S: Final = 8.0
_MOST_UNANSWERED: Final = 5
"""If the log does not answer in this number of readings, the lane counts as read to its end. Each reading waits longer
than the one before.
"""
_LONGEST_WITHOUT_SLOT_S: Final = 300.0
"""After this time without a reader slot, a lane at its apparent end is read again, even if other lanes wait for a slot.
"""


Readable = LogMessage | QueueMessage


@dataclass(frozen=True, slots=True)
class _LaneWaker:
    """Wakes the reader when a message is broadcast in the lane."""

    backlog_reader: BacklogReader
    backlog: Backlog

    def wake(self) -> None:
        self.backlog_reader.offer(self.backlog)


class BacklogReader:
    """Reads the backlogs of one watcher in one group.

    The reader reads one lane at a time, in turns. A lane that waits after a failure, or for messages, does not delay
    the others.

    Args:
        readers: Limits how many lanes of the stream's log are read at a time, in addition to the poll.
        on_gap: Called with a position if the lane has no message between the cursor and this position.
        on_failure: Called when a lane could not be read. The reading is tried again.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        state: GroupState,
        context: RuntimeContext,
        readers: ReaderSlots,
        handover: Handover,
        on_gap: Callable[[Backlog, Position], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._watcher = watcher
        self._state = state
        self._context = context
        self._readers = readers
        self._handover = handover
        self._on_gap = on_gap
        self._on_failure = on_failure
        self._turns = LaneTurns(context)
        self._wake = AutoResetEvent()
        self._is_interrupted = False
        self._at_end: dict[Backlog, tuple[Position, float]] = {}
        """For each lane that was read to its apparent end: the position of the end, and when the reader reached it.

        Such a lane leaves its reader slot to other lanes.
        """
        self._unanswered: dict[Backlog, int] = {}
        """By lane, in how many readings in succession the log has not answered while other lanes waited.

        The broker may be slow, or the lane may have no further message.
        """
        parked = context.parked
        self.queue = (
            QueueReader(watcher, state, parked) if parked and state.stores_messages else None
        )
        self.tasks: anyio.abc.TaskGroup | None = None
        """The task group of the readers; set before the first reading."""

    def wake(self) -> None:
        """Give a turn to every lane that waits because it had no message."""
        self._turns.end_rests()
        self._wake.set()

    def interrupt(self) -> None:
        """Stop waiting for a message, because a replayed message comes first."""
        self._is_interrupted = True
        self._wake.set()

    def offer(self, backlog: Backlog) -> None:
        """Give a lane a turn, because it may be read now or has more messages."""
        self._at_end.pop(backlog, None)
        self._turns.offer(backlog)
        self._wake.set()

    # Which lane, and when

    def next_lane(self) -> Backlog | None:
        """Return the lane to read next, or None if no lane may be read now."""
        self._is_interrupted = False
        if self._watcher.watcher_id in self._state.backlogs.rewinding:
            return None
        while (backlog := self._turns.next()) is not None:
            if not (self._handover.go_live_if_caught_up(backlog) or self._gives_way(backlog)):
                return backlog
        return None

    def _gives_way(self, backlog: Backlog) -> bool:
        """Let a lane rest if it was read to its end and no reader slot is free. Return whether the lane rests.

        The next broadcast in the lane ends the rest. A lane without a slot for `_LONGEST_WITHOUT_SLOT_S` does not rest.
        """
        end, since = self._at_end.get(backlog, (None, 0.0))
        if end != backlog.cursor or self._readers.is_free:
            return False
        without = self._context.clock.monotonic() - since
        if without >= _LONGEST_WITHOUT_SLOT_S:
            return False
        self._turns.rest(backlog, min(max(without, _IDLE_S), _LONGEST_REST_S))
        return True

    def _rest(self, backlog: Backlog, reading: Reading | None) -> None:
        if reading is not None:
            for known in (self._at_end, self._unanswered):
                for one in [one for one in known if one.is_gone or one.is_caught_up]:
                    del known[one]
            if reading.has_answered:
                self._unanswered.pop(backlog, None)
            else:
                self._unanswered[backlog] = self._unanswered.get(backlog, 0) + 1
            if self._unanswered.get(backlog, _MOST_UNANSWERED) >= _MOST_UNANSWERED:
                self._at_end[backlog] = backlog.cursor, self._context.clock.monotonic()
        self._turns.rest(backlog, _IDLE_S)

    def _patience_s(self, backlog: Backlog, reading: Reading | None) -> float:
        """Return how long to wait for a message of this lane while other lanes want a turn."""
        if reading is None or reading.has_answered:
            return _IDLE_S
        unanswered = min(self._unanswered.get(backlog, 0), _MOST_UNANSWERED)
        return min(_IDLE_S * 2.0**unanswered, _LONGEST_REST_S)

    async def wait_for_turn(self) -> None:
        """Wait until a lane may be read, or something has changed."""
        if not self._turns:
            for backlog in self._state.backlogs.to_catch_up(self._watcher.watcher_id):
                self._turns.offer(backlog)
        now = self._context.clock.monotonic()
        due = self._turns.due()
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

    def postpone(self, backlog: Backlog, *, is_patient: bool = True) -> None:
        """Let a lane with a failure wait for a growing delay, or until `restart` if the context forbids retries.

        Args:
            is_patient: True: use the delays of `RuntimeContext.restart_backoff`. False: the shorter ones of
                `retry_backoff`.
        """
        self._turns.postpone(backlog, is_patient=is_patient)
        self._wake.set()

    def delay(self, backlog: Backlog, seconds: float) -> None:
        """Let the lane wait for this time."""
        self._turns.delay(backlog, seconds)
        self._wake.set()

    def hold(self, backlog: Backlog) -> None:
        """Stop reading the lane until `resume`."""
        self._turns.delay(backlog, math.inf)

    def resume(self, backlog: Backlog) -> None:
        """Give a waiting lane its turn now."""
        self._turns.resume(backlog)
        self._wake.set()

    def record_failure(self) -> None:
        """Count a failure of any lane. After many in succession, all lanes wait."""
        self._turns.record_failure()

    def record_success(self, backlog: Backlog) -> None:
        """Record that a message of the lane has passed. The lane's next failure has the shortest delay again."""
        self._turns.record_success(backlog)

    def restart(self) -> None:
        """Try every failed lane again now."""
        self._turns.restart()
        self._wake.set()

    # Messages

    async def slice(self, backlog: Backlog) -> AsyncGenerator[Sequence[Readable], None]:
        """Yield messages of a lane from `Backlog.cursor` on, in order, a burst at a time.

        Before the caller asks for the next burst, the caller must move `Backlog.cursor` past the whole burst, or else
        close the generator.
        """
        bursts = self._bursts(backlog)
        async with aclosing(bursts):
            async for burst in bursts:
                yield burst
        if not backlog.is_caught_up and not backlog.is_gone:
            self._state.store_position(backlog)

    def _bursts(self, backlog: Backlog) -> AsyncGenerator[Sequence[Readable], None]:
        if backlog.stored_lane is not None:
            return self._from_queue(backlog)
        following = self._state.lane_tail_of(backlog.lane).after(backlog.cursor, 1)
        if following is None or (backlog.is_reemitting and not following):
            # Read the log, because the next message is not in memory. Also read it when all
            # messages in memory were re-emitted: only the log shows whether the re-emission is
            # complete.
            return self._read(backlog)
        return self._from_memory(backlog)

    async def _from_queue(self, backlog: Backlog) -> AsyncGenerator[Sequence[Readable], None]:
        stored, queue = backlog.stored_lane, self.queue
        assert stored is not None
        assert queue is not None
        given = 0
        while given < _SLICE and not (backlog.is_gone or backlog.is_caught_up):
            if stored.has_unread:
                try:
                    page = await queue.read(backlog)
                except StoreError as error:
                    self.postpone(backlog)
                    self._on_failure(error)
                    return
                resets = stored.resets
                for at in range(0, len(page), _BURST):
                    burst = page[at : at + _BURST]
                    yield burst
                    given += len(burst)
                    if stored.resets != resets:
                        break
                    assert burst[-1].id is not None
                    stored.mark_given(burst[-1].id)
            elif not stored.unread_writes and (burst_in_memory := queue.undecided(backlog, _BURST)):
                yield burst_in_memory
                given += len(burst_in_memory)
                await checkpoint()
            elif not await self._wait_for_message(backlog):
                return

    async def _from_memory(self, backlog: Backlog) -> AsyncGenerator[Sequence[Readable], None]:
        for number in range(_SLICE // _BURST):
            burst = self._state.lane_tail_of(backlog.lane).after(backlog.cursor, _BURST)
            if burst is None:
                # Newer messages have displaced the next messages from memory. The next turn reads the log.
                break
            if not burst:
                if not number:
                    # The watcher has read everything, but cannot go live while its live filter is absent.
                    await self._wait_for_message(backlog)
                break
            yield burst
            if len(burst) == _BURST:
                await checkpoint()

    async def _read(self, backlog: Backlog) -> AsyncGenerator[Sequence[Readable], None]:
        assert self.tasks is not None
        assert self._state.producer is not None
        reading = await self._readers.begin(self._wake.set)
        try:
            self._at_end.pop(backlog, None)
            reader = LogReader(self._state.producer, backlog.lane, backlog.cursor, self._wake.set)
            # Run the reader in `self.tasks`: a generator must not yield inside a task group of its own.
            self.tasks.start_soon(_run_in, reading.scope, reader)
            async with aclosing(self._from_log(backlog, reader, reading)) as bursts:
                async for burst in bursts:
                    yield burst
        finally:
            reading.end()

    async def _from_log(
        self, backlog: Backlog, reader: LogReader, reading: Reading
    ) -> AsyncGenerator[Sequence[Readable], None]:
        clock, given = self._context.clock, 0
        until = clock.monotonic() + _SLICE_S
        reached = backlog.cursor
        messages, at, most = list[LogMessage](), 0, _BURST
        while (
            given < _SLICE_OF_LOG
            and clock.monotonic() < until
            and not (backlog.is_gone or backlog.is_caught_up)
        ):
            if backlog.cursor is not reached:
                # Other code has moved the cursor, for example back. So the next message is not in this reading.
                return
            if at >= len(messages):
                messages, at = reader.take(), 0
                if messages and not is_same_log(messages[0].position, reached):
                    self._handover.read_recreated(backlog, messages[0].position)
                    reached = backlog.cursor
                if messages:
                    reading.record_messages()
                    continue
                if reader.nothing_before is not None:
                    reading.has_answered = True
                self._pass_over(backlog, reader.nothing_before)
                reached = backlog.cursor
                if reader.error is not None:
                    self.postpone(backlog)
                    self._on_failure(reader.error)
                    return
                if not await self._wait_for_message(backlog, reading):
                    return
                continue
            burst = messages[at : at + most]
            at += len(burst)
            given += len(burst)
            reading.lent_at = began = clock.monotonic()
            yield burst
            reading.lent_at = None
            if reading.is_over:
                # The filter was slow, and another reader has got the slot.
                return
            most = _adapt(most, clock.monotonic() - began)
            reached = backlog.cursor
            if self._state.lane_tail_of(backlog.lane).covers(reached):
                # The next messages are in memory, so the log need not be read.
                return
            await checkpoint()

    def _pass_over(self, backlog: Backlog, position: Position | None) -> None:
        """Move the cursor to this position, because the log has no message in between. None: do nothing."""
        if position is None:
            return
        if not is_same_log(position, backlog.cursor):
            self._handover.read_recreated(backlog, position)
        elif is_before(backlog.cursor, position):
            self._on_gap(backlog, position)

    async def _wait_for_message(self, backlog: Backlog, reading: Reading | None = None) -> bool:
        """Wait for the backlog's next message. Return False if the reader must leave the lane.

        For example, the watcher is live, the next message is in memory, or another lane waits for its turn.
        """
        if self._handover.go_live_if_caught_up(backlog) or self._handover.is_recreated(backlog):
            return False
        if backlog.stored_lane is None:
            lane_tail = self._state.lane_tail_of(backlog.lane)
            if lane_tail.after(backlog.cursor, 1):
                return False
            lane_tail.wake_once(_LaneWaker(self, backlog))
        since = anyio.current_time() if reading is None else reading.empty_since()
        is_first, patience_s = True, self._patience_s(backlog, reading)
        while True:
            empty_s = anyio.current_time() - since
            if empty_s >= patience_s:
                has_others = self._state.backlogs.count_behind(self._watcher.watcher_id) > 1
                if has_others or (reading is not None and self._readers.are_wanted):
                    self._rest(backlog, reading)
                    return False
                if self._handover.go_live_if_caught_up(backlog):
                    # The live filter is present again. No event reports this, so the loop checks it.
                    return False
                if is_first and not (reading is not None and reading.is_idle):
                    self._state.store_position(backlog)
                is_first = False
                if reading is not None:
                    reading.is_idle = True
            wait_s = _IDLE_S if empty_s >= patience_s else patience_s - empty_s
            with anyio.move_on_after(wait_s) as waiting:
                await self._wake.wait()
            if not waiting.cancelled_caught:
                return not (backlog.is_gone or backlog.is_caught_up or self._is_interrupted)


def _adapt(most: int, took_s: float) -> int:
    """Return the size of the next burst, given the size of the last one and how long it took."""
    if took_s > _BURST_S:
        return max(most // 2, 1)
    return min(most * 2, _MOST_IN_BURST) if took_s < _BURST_S / 2 else most


async def _run_in(scope: anyio.CancelScope, reader: LogReader) -> None:
    with scope:
        await reader.run()
