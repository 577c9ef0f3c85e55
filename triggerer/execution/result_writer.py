"""Writes what becomes of runs into the store, in groups, and keeps it until that has worked."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import anyio
import structlog

from triggerer.domain.attempts import RunEnd, RunOrder
from triggerer.domain.runs import RunState
from triggerer.errors import Conflict, OutcomeUnknown, RowRefused, StoreError, StoreUnavailable
from triggerer.execution.emissions import Emission, record_emissions
from triggerer.runtime.backoff import Backoff
from triggerer.store.engine.database import Database
from triggerer.store.engine.script import Row, Step, perform, single_step
from triggerer.store.queries.execution.results import (
    AttemptUpdate,
    HeldRun,
    SaveResults,
    held_runs,
)
from triggerer.store.queries.execution.transitions import begin_run
from triggerer.store.wakeups.signals import Signal

_log = structlog.get_logger(__name__)

_LARGEST_GROUP: Final = 200
"""Entries per transaction: the gain is gone by then, and SQLite's one writer is not held for long."""

_JOINED_STEP_SECONDS: Final = 60.0
"""Longer than the store takes to say that it is away."""


class _JoinedStep:
    """A step that is performed along with the next group, and what came of it."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.done = anyio.Event()
        self.rows: list[Row] = []
        self.error: Exception | None = None


class ResultWriter:
    """Takes results at once and writes them as soon as the last group is written.

    A store that is away delays the writing and nothing else; what was submitted is kept, in order,
    until it is written, or the store shows that the attempt is not this executor's any more.
    """

    def __init__(self, database: Database, executor: str) -> None:
        self._database = database
        self._executor = executor
        self._entries: deque[AttemptUpdate] = deque()
        self._joined_steps: list[_JoinedStep] = []
        self._arrived = anyio.Event()
        self._written = anyio.Event()
        self._unwritten: Counter[int] = Counter()
        # By (run, attempt), until the attempt's end is written.
        self._refused: dict[tuple[int, int], str] = {}

    def submit_nowait(self, entry: AttemptUpdate) -> None:
        """Take an entry to be written; those of one run are written in order."""
        self._entries.append(entry)
        self._unwritten[entry.order.run_pk] += 1
        self._arrived.set()

    async def perform_with_next_commit(self, step: Step) -> list[Row]:
        """Perform a step with the next group, or by itself if there is none; return its rows.

        An executor that has ended a run asks for the next one, and a second transaction would cost as
        much as the first.

        Raises:
            As `Database.perform_steps`. The group is written all the same.
        Cancellation: What has begun is finished, and returned.
        """
        joined = _JoinedStep(step)
        self._joined_steps.append(joined)
        self._arrived.set()
        try:
            await joined.done.wait()
        except BaseException:
            if joined in self._joined_steps:
                self._joined_steps.remove(joined)
                raise
            # Nobody else would know of what it does.
            with anyio.move_on_after(_JOINED_STEP_SECONDS, shield=True):
                await joined.done.wait()
            if not joined.done.is_set():
                raise
        if joined.error is not None:
            raise joined.error
        return joined.rows

    async def begin(self, order: RunOrder) -> bool:
        """Write that an attempt begins, when the store can be had; whether it is this executor's still.

        Cancellation: It may be written or not.
        """
        backoff = Backoff(first=0.2, longest=10.0)
        while True:
            step = begin_run(executor=self._executor, run_pk=order.run_pk, attempt=order.attempt)
            try:
                is_ours = bool(await self.perform_with_next_commit(step))
            except (StoreUnavailable, Conflict, OutcomeUnknown) as error:
                # Written twice it says the same.
                delay = backoff.next_delay(0.0)
                _log.warning(
                    "a run waits for the store to begin", run=order.run_id, error=str(error)
                )
                await anyio.sleep(delay)
                continue
            if not is_ours:
                _log.warning("a run was given to another attempt before it began", run=order.run_id)
            return is_ours

    @property
    def unwritten(self) -> frozenset[int]:
        """The runs that something is still to be written of."""
        return frozenset(self._unwritten)

    async def written(self, run_pk: int | None = None) -> None:
        """Wait until nothing is left to be written: of this run, or at all."""
        while self._unwritten if run_pk is None else run_pk in self._unwritten:
            await self._written.wait()

    async def run(self) -> None:
        """Write what is submitted; lives until it is cancelled."""
        while True:
            await self._arrived.wait()
            group = [
                self._entries.popleft() for _ in range(min(len(self._entries), _LARGEST_GROUP))
            ]
            joined_steps, self._joined_steps = self._joined_steps, []
            if not self._entries:
                self._arrived = anyio.Event()
            if not await self._write_with_joined(group, joined_steps):
                await self._write_somehow(group)
            for entry in group:
                self._unwritten[entry.order.run_pk] -= 1
                if entry.end is not None:
                    self._refused.pop(_attempt(entry.order), None)
            self._unwritten = +self._unwritten
            written, self._written = self._written, anyio.Event()
            written.set()

    async def _write_with_joined(
        self, group: list[AttemptUpdate], joined_steps: Sequence[_JoinedStep]
    ) -> bool:
        """Write the group and what goes along with it; whether the group is written."""
        if not joined_steps:
            return not group
        steps = [joined.step for joined in joined_steps]
        is_written = True
        try:
            try:
                answers = await self._write(group, steps)
            except RowRefused:
                # Of the group; it is found without keeping the others waiting.
                is_written = not group
                answers = await self._database.perform_steps(steps)
        except BaseException as error:
            cancelled = OutcomeUnknown("the result writer was stopped")
            for joined in joined_steps:
                joined.error = error if isinstance(error, Exception) else cancelled
                joined.done.set()
            if not isinstance(error, StoreError):
                # Nothing that a repeat would mend; nobody is left waiting for it.
                raise
            return not group
        for joined, rows in zip(joined_steps, answers, strict=True):
            joined.rows = rows
            joined.done.set()
        return is_written

    async def _write_somehow(self, group: list[AttemptUpdate]) -> None:
        backoff = Backoff(first=0.2, longest=10.0)
        while True:
            try:
                await self._write(group)
            except RowRefused as error:
                if len(group) > 1:
                    half = len(group) // 2
                    await self._write_somehow(group[:half])
                    await self._write_somehow(group[half:])
                    return
                group = [self._without_what_was_refused(group[0], error)]
            except (StoreUnavailable, Conflict, OutcomeUnknown) as error:
                # Repeating it as it was is right in each case: events have keys, and a run that
                # has ended already is not ended again.
                delay = backoff.next_delay(0.0)
                _log.warning("results wait for the store", entries=len(group), error=str(error))
                await anyio.sleep(delay)
            else:
                return

    def _without_what_was_refused(self, entry: AttemptUpdate, error: RowRefused) -> AttemptUpdate:
        if not entry.tasks:
            raise error
        _log.warning("the store refused a result", run=entry.order.run_id, error=str(error))
        self._refused[_attempt(entry.order)] = str(error)
        return _without_refused(entry, str(error))

    async def _write(
        self, group: Sequence[AttemptUpdate], along: Sequence[Step] = ()
    ) -> list[list[Row]]:
        """Write a group, and perform other steps; the rows of those."""
        if not group:
            return await self._database.perform_steps(along)
        step = SaveResults(
            self._executor,
            [self._as_refused(update) for update in group],
            self._database.transport.sender,
        )
        if not any(task.events for update in group for task in update.tasks):
            rows, *answers = await self._database.perform_steps([step, *along])
            held = held_runs(rows)
            for entry in group:
                self._is_ours(entry, held)
        else:
            async with self._database.transaction() as session:
                held = held_runs(await perform(session, single_step(step)))
                ours = [entry for entry in group if self._is_ours(entry, held)]
                await record_emissions(
                    session, [emission for entry in ours for emission in Emission.all_of(entry)]
                )
                answers = [await perform(session, single_step(other)) for other in along]
        await self._announce_ends(group, held)
        return answers

    def _as_refused(self, update: AttemptUpdate) -> AttemptUpdate:
        """The update, whose run has not succeeded if the store refused a result of it."""
        end = update.end
        refused = self._refused.get(_attempt(update.order))
        if end is None or refused is None or end.state is not RunState.SUCCESS:
            return update
        return replace(update, end=replace(end, state=RunState.FAILED, error=refused))

    async def _announce_ends(
        self, group: Sequence[AttemptUpdate], held: Mapping[int, HeldRun]
    ) -> None:
        # Also for what had been written before: perhaps by a commit whose outcome nobody saw.
        ended = {
            entry.order.dag_id
            for entry in group
            if entry.end is not None and _is_held(entry.order, held)
        }
        if ended:
            await self._database.announce_here({Signal.RUNS_ENDED: ended})

    def _is_ours(self, entry: AttemptUpdate, held: Mapping[int, HeldRun]) -> bool:
        if _is_held(entry.order, held):
            # Ended: by the very entry whose commit had an unknown outcome.
            return held[entry.order.run_pk].state is RunState.RUNNING
        _log.warning(
            "a result came too late: the run was given to another attempt",
            dag=entry.order.dag_id,
            run=entry.order.run_id,
            attempt=entry.order.attempt,
        )
        return False


def _attempt(order: RunOrder) -> tuple[int, int]:
    return order.run_pk, order.attempt


def _is_held(order: RunOrder, held: Mapping[int, HeldRun]) -> bool:
    run = held.get(order.run_pk)
    return run is not None and run.attempt == order.attempt


def _without_refused(update: AttemptUpdate, reason: str) -> AttemptUpdate:
    """What is stored instead when the store will not have the events, or, last, the tasks."""
    end = update.end
    if not any(task.events for task in update.tasks):
        error = f"the store refused it: {reason}"
        failed = RunEnd(RunState.FAILED, datetime.now(UTC), error)
        return replace(update, tasks=(), end=end and failed)
    names = ", ".join(task.task_id for task in update.tasks)
    error = f"what task {names} left was refused: {reason}"
    return replace(
        update,
        tasks=tuple(task.failed(error) for task in update.tasks),
        end=end and replace(end, state=RunState.FAILED, error=error),
    )
