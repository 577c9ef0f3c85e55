"""Advances the broker's position. The only caller of `advance`."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from triggerer.abc import AdvanceItem, SharedStreamProducer
from triggerer.observability.metrics.table import OPERATION_DURATION, PROCESS_DURATION
from triggerer.observability.redaction import redact_text
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Lane
from triggerer.streams.loop_tick import LoopTick

_BURST: Final = 512
"""The most events that the pump handles before it lets other tasks run."""
_REQUEST: Final = 2_048
"""The most events of one lane in one advance, if lanes advance side by side.

Each advance is a request to the broker. So a number above `_BURST` saves requests.
"""


class Pump:
    """Releases an event to its lane once all subscribers have passed it, and advances each lane whose head is ready.

    Usually one lane is advanced at a time. If the producer declares `lanes_advance_side_by_side`, several lanes are
    advanced at a time, but each lane has only one advance under way. An advance that raises ends the group.
    """

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._turns = LoopTick()
        self._task_name = f"shared-stream-pump[{state.key}]"
        self._what = f"advance() of the shared stream {state.name}"
        self._name = redact_text(state.name)
        self._durations = OPERATION_DURATION.of(self._name, "advance", "")
        self._ages = PROCESS_DURATION.of(self._name)
        self._awaited: Sequence[AdvanceItem] | None = None
        # The awaited advances of lanes that advance side by side.
        self._awaited_beside: dict[Lane, Sequence[AdvanceItem]] = {}
        self._awaited_together: dict[int, Sequence[Sequence[AdvanceItem]]] = {}
        # The lanes that an awaited call has reported as advanced.
        self._reported: deque[tuple[Lane, Sequence[AdvanceItem]]] = deque()

    @property
    def awaited(self) -> list[Sequence[Any]]:
        """The batches of the advances that have not returned. Compare them by identity."""
        one = [] if self._awaited is None else [self._awaited]
        return [*one, *self._awaited_beside.values(), *self._awaited_together.values()]

    async def run(self) -> None:
        state = self._state
        ledger, progress = state.ledger, state.progress
        async with anyio.create_task_group() as tasks:
            while True:
                await progress.wait()
                if self._reported:
                    self._finish_reported()
                while ledger.release_passed(_BURST):
                    await self._advance_with_state(tasks)
                    await checkpoint()
                await self._advance_with_state(tasks)
                if not state.is_acknowledged:
                    # On the fast path no advance wakes the callers that wait for the group to drain, so wake them here.
                    progress.signal_room()

    async def _advance_with_state(self, tasks: anyio.abc.TaskGroup) -> None:
        staging = self._state.staging
        if staging is None:
            await self._advance_ready(tasks)
            return
        staging.flush()
        if not staging.is_ahead:
            await self._advance_ready(tasks)
            staging.mark_advanced()
            staging.flush()

    async def _advance_ready(self, tasks: anyio.abc.TaskGroup) -> None:
        state = self._state
        if not state.lanes.has_ready or not state.may_act:
            return
        producer = state.producer
        assert producer is not None
        if producer.lanes_advance_side_by_side:
            await self._start_side_by_side(producer, tasks)
            return
        try:
            with plugin_code(self._what):
                await self._advance_one_by_one(producer)
        except Exception:
            state.is_ending = True
            raise

    async def _advance_one_by_one(self, producer: SharedStreamProducer) -> None:
        lanes, progress, turns = self._state.lanes, self._state.progress, self._turns
        advance, backlogs = producer.advance, self._state.backlogs
        turns.watch()
        handled = 0
        is_first = True
        for batch in lanes.batches(_BURST):
            if handled >= _BURST:
                handled = 0
                progress.signal_room()
                await checkpoint()
            elif turns.has_turned:
                # The earlier batches have made room, so wake the tasks that wait for room. If the loop has not turned,
                # no task can have begun to wait meanwhile.
                progress.signal_room()
            self._awaited = batch
            if is_first:
                is_first = False
                await self._advance_measured(advance, batch)
            else:
                await advance(batch)
            if backlogs.by_lane:
                self._state.mark_advanced(batch)
            if turns.has_turned:
                # If the plugin shielded this advance, the pump may have been cancelled meanwhile, and must begin no
                # further advance. If the loop has not turned, nothing can have cancelled the pump.
                await checkpoint_if_cancelled()
                if self._state.lease.is_over:
                    return
            handled += len(batch)
        self._awaited = None
        progress.signal_room()

    async def _start_side_by_side(
        self, producer: SharedStreamProducer, tasks: anyio.abc.TaskGroup
    ) -> None:
        lanes = self._state.lanes
        if type(producer).advance_lanes is not SharedStreamProducer.advance_lanes:
            await self._start_together(producer, tasks)
            return
        handled = 0
        is_first = True
        while lanes.has_ready:
            lane, batch = lanes.take(_REQUEST)
            if not batch:
                lanes.finish(lane)
                continue
            tasks.start_soon(
                self._advance_beside_others,
                producer,
                lane,
                batch,
                lanes.oldest_at if is_first else None,
                name=self._task_name,
            )
            is_first = False
            handled += len(batch)
            if handled >= _BURST:
                handled = 0
                await checkpoint()

    async def _advance_beside_others(
        self,
        producer: SharedStreamProducer,
        lane: Lane,
        batch: Sequence[AdvanceItem],
        oldest_at: float | None,
    ) -> None:
        state = self._state
        if not state.may_act:
            # The group was closed, or its lease ended, after this task was started. A cancellation is not enough: it
            # takes effect only at the first `await`, and the producer may send its request before that.
            return
        self._awaited_beside[lane] = batch
        began = 0.0 if oldest_at is None else state.clock.monotonic()
        try:
            with plugin_code(self._what):
                await producer.advance(batch)
            if state.backlogs.by_lane:
                state.mark_advanced(batch)
        except Exception as error:
            self._count_failure(error, began or state.clock.monotonic())
            state.is_ending = True
            raise
        finally:
            del self._awaited_beside[lane]
        if oldest_at is not None:
            self._count(began, oldest_at)
        state.lanes.finish(lane)
        await checkpoint_if_cancelled()
        # Wake the pump, because the lane may be ready again, and the poll, because the advance has made room.
        state.progress.signal()

    async def _start_together(
        self, producer: SharedStreamProducer, tasks: anyio.abc.TaskGroup
    ) -> None:
        lanes = self._state.lanes
        while lanes.has_ready:
            together, batches = lanes.take_together(_BURST, _REQUEST)
            if not batches:
                continue
            tasks.start_soon(
                self._advance_together,
                producer,
                together,
                batches,
                lanes.oldest_at,
                name=self._task_name,
            )
            if lanes.has_ready:
                await checkpoint()

    async def _advance_together(
        self,
        producer: SharedStreamProducer,
        together: list[Lane],
        batches: list[list[AdvanceItem]],
        oldest_at: float,
    ) -> None:
        state = self._state
        if not state.may_act:
            # The group was closed, or its lease ended, after this task was started. A cancellation is not enough: it
            # takes effect only at the first `await`, and the producer may send its request before that.
            return
        reported: set[int] = set()

        def report(places: Iterable[int]) -> None:
            for place in places:
                if place not in reported:
                    reported.add(place)
                    self._reported.append((together[place], batches[place]))
            state.progress.signal()

        self._awaited_together[id(batches)] = batches
        began = state.clock.monotonic()
        try:
            with plugin_code(self._what):
                await producer.advance_lanes(batches, report)
            if state.backlogs.by_lane:
                for place, batch in enumerate(batches):
                    if place not in reported:
                        state.mark_advanced(batch)
        except Exception as error:
            self._count_failure(error, began)
            state.is_ending = True
            raise
        finally:
            del self._awaited_together[id(batches)]
        self._count(began, oldest_at)
        finish = state.lanes.finish
        for lane in _unreported(together, reported) if reported else together:
            finish(lane)
        await checkpoint_if_cancelled()
        state.progress.signal()

    async def _advance_measured(
        self,
        advance: Callable[[Sequence[AdvanceItem]], Awaitable[None]],
        batch: Sequence[AdvanceItem],
    ) -> None:
        """Advance, and record how long the advance took.

        The pump measures only the first advance of each turn, because a measurement costs a tenth of the time that the
        runtime needs for a message.
        """
        began, oldest_at = self._state.clock.monotonic(), self._state.lanes.oldest_at
        try:
            await advance(batch)
        except Exception as error:
            self._count_failure(error, began)
            raise
        self._count(began, oldest_at)

    def _count(self, began: float, oldest_at: float) -> None:
        """Record, for the metrics, how long one call of the producer took, and the age of the call's oldest message."""
        now = self._state.clock.monotonic()
        self._durations.observe(now - began)
        self._ages.observe(now - oldest_at)

    def _count_failure(self, error: Exception, began: float) -> None:
        seconds = self._state.clock.monotonic() - began
        OPERATION_DURATION.observe(seconds, self._name, "advance", type(error).__name__)

    def _finish_reported(self) -> None:
        """Finish the lanes that `advance_lanes` has reported as advanced before it returned."""
        state = self._state
        try:
            with plugin_code(self._what):
                while self._reported:
                    lane, batch = self._reported.popleft()
                    if state.backlogs.by_lane:
                        state.mark_advanced(batch)
                    state.lanes.finish(lane)
        except Exception:
            state.is_ending = True
            raise
        state.progress.signal_room()


def _unreported(together: Sequence[Lane], reported: set[int]) -> Sequence[Lane]:
    """Return the lanes that `advance_lanes` did not report before it returned."""
    return [lane for place, lane in enumerate(together) if place not in reported]
