"""Writes what becomes of runs into the store, in groups, and keeps it until that has worked."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import anyio
import structlog

from triggerer.domain.runs import RunState, TaskState
from triggerer.errors import Conflict, OutcomeUnknown, RowRefused, StoreError, StoreUnavailable
from triggerer.execution.emissions import Emission, record_emissions
from triggerer.execution.protocol import RunEnd, RunOrder, RunReport, TaskResult, Wait
from triggerer.runtime.backoff import Backoff
from triggerer.store.database import Database
from triggerer.store.queries.execution import begin_run, note_wait
from triggerer.store.queries.results import HeldRun, RunEndRow, SaveResults, TaskRow, held_runs
from triggerer.store.script import Row, Step, one, perform
from triggerer.store.wakeups import Signal

_log = structlog.get_logger(__name__)

_LARGEST_GROUP: Final = 200
"""Entries per transaction: the gain is gone by then, and SQLite's one writer is not held for long."""

_RIDE_SECONDS: Final = 60.0
"""Longer than the store takes to say that it is away."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that became of an attempt: tasks that run or ended, a wait, and maybe the run's end."""

    order: RunOrder
    tasks: tuple[TaskRow, ...] = ()
    events: tuple[Emission, ...] = ()
    end: RunEnd | None = None
    wait: Wait | None = None

    @classmethod
    def of_report(cls, order: RunOrder, report: RunReport) -> Entry:
        return cls(
            order,
            tuple(_task_row(order, task) for task in report.tasks),
            tuple(
                Emission(order, task.task_id, event)
                for task in report.tasks
                for event in task.events
            ),
            report.end,
        )

    def refused(self, reason: str) -> Entry:
        """What is stored instead when the store will not have the events, or, last, the tasks."""
        text = (
            f"what task {', '.join(task.task_id for task in self.tasks)} left was refused: {reason}"
        )
        if not self.events:
            failed = RunEnd(RunState.FAILED, datetime.now(UTC), f"the store refused it: {reason}")
            return dataclasses.replace(self, tasks=(), end=self.end and failed)
        tasks = tuple(
            dataclasses.replace(task, state=TaskState.FAILED, error=text) for task in self.tasks
        )
        end = self.end and dataclasses.replace(self.end, state=RunState.FAILED, error=text)
        return dataclasses.replace(self, tasks=tasks, events=(), end=end)


class _Rider:
    """A step that is performed along with the next group, and what came of it."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.done = anyio.Event()
        self.rows: list[Row] = []
        self.error: Exception | None = None


class Bookkeeper:
    """Takes results at once and writes them as soon as the last group is written.

    A store that is away delays the writing and nothing else; what was submitted is kept, in order,
    until it is written, or the store shows that the attempt is not this executor's any more.
    """

    def __init__(self, database: Database, executor: str) -> None:
        self._database = database
        self._executor = executor
        self._entries: deque[Entry] = deque()
        self._riders: list[_Rider] = []
        self._arrived = anyio.Event()
        self._written = anyio.Event()
        self._unwritten: Counter[int] = Counter()
        # By (run, attempt), until the attempt's end is written.
        self._refused: dict[tuple[int, int], str] = {}

    def submit_nowait(self, entry: Entry) -> None:
        """Take an entry to be written; those of one run are written in order."""
        self._entries.append(entry)
        self._unwritten[entry.order.run_pk] += 1
        self._arrived.set()

    async def along(self, step: Step) -> list[Row]:
        """Perform a step with the next group, or by itself if there is none; return its rows.

        An executor that has ended a run asks for the next one, and a second transaction would cost as
        much as the first.

        Raises:
            As `Database.each`. The group is written all the same.
        Cancellation: What has begun is finished, and returned.
        """
        rider = _Rider(step)
        self._riders.append(rider)
        self._arrived.set()
        try:
            await rider.done.wait()
        except BaseException:
            if rider in self._riders:
                self._riders.remove(rider)
                raise
            # Nobody else would know of what it does.
            with anyio.move_on_after(_RIDE_SECONDS, shield=True):
                await rider.done.wait()
            if not rider.done.is_set():
                raise
        if rider.error is not None:
            raise rider.error
        return rider.rows

    async def begin(self, order: RunOrder) -> bool:
        """Write that an attempt begins, when the store can be had; whether it is this executor's still.

        Cancellation: It may be written or not.
        """
        backoff = Backoff(first=0.2, longest=10.0)
        while True:
            step = begin_run(executor=self._executor, run_pk=order.run_pk, attempt=order.attempt)
            try:
                is_ours = bool(await self.along(step))
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
            riders, self._riders = self._riders, []
            if not self._entries:
                self._arrived = anyio.Event()
            if not await self._write_along(group, riders):
                await self._write_somehow(group)
            for entry in group:
                self._unwritten[entry.order.run_pk] -= 1
                if entry.end is not None:
                    self._refused.pop(_attempt(entry.order), None)
            self._unwritten = +self._unwritten
            written, self._written = self._written, anyio.Event()
            written.set()

    async def _write_along(self, group: list[Entry], riders: Sequence[_Rider]) -> bool:
        """Write the group and what goes along with it; whether the group is written."""
        if not riders:
            return not group
        steps = [rider.step for rider in riders]
        is_written = True
        try:
            try:
                answers = await self._write(group, steps)
            except RowRefused:
                # Of the group; it is found without keeping the others waiting.
                is_written = not group
                answers = await self._database.each(steps)
        except BaseException as error:
            cancelled = OutcomeUnknown("the bookkeeper was stopped")
            for rider in riders:
                rider.error = error if isinstance(error, Exception) else cancelled
                rider.done.set()
            if not isinstance(error, StoreError):
                # Nothing that a repeat would mend; nobody is left waiting for it.
                raise
            return not group
        for rider, rows in zip(riders, answers, strict=True):
            rider.rows = rows
            rider.done.set()
        return is_written

    async def _write_somehow(self, group: list[Entry]) -> None:
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

    def _without_what_was_refused(self, entry: Entry, error: RowRefused) -> Entry:
        if not entry.tasks and not entry.events:
            raise error
        _log.warning("the store refused a result", run=entry.order.run_id, error=str(error))
        self._refused[_attempt(entry.order)] = str(error)
        return entry.refused(str(error))

    async def _write(self, group: Sequence[Entry], along: Sequence[Step] = ()) -> list[list[Row]]:
        """Write a group, and perform other steps; the rows of those."""
        if not group:
            return await self._database.each(along)
        step = self._results(group)
        # After the ends: an ended run waits for nothing.
        waits = [self._wait_step(entry, entry.wait) for entry in group if entry.wait is not None]
        if not any(entry.events for entry in group):
            rows, *answers = await self._database.each([step, *waits, *along])
            answers = answers[len(waits) :]
            held = held_runs(rows)
            for entry in group:
                self._is_ours(entry, held)
        else:
            async with self._database.transaction() as session:
                held = held_runs(await perform(session, one(step)))
                ours = [entry for entry in group if self._is_ours(entry, held)]
                await record_emissions(session, [event for entry in ours for event in entry.events])
                for wait in waits:
                    await perform(session, one(wait))
                answers = [await perform(session, one(other)) for other in along]
        await self._announce_ends(group, held)
        return answers

    def _results(self, group: Sequence[Entry]) -> SaveResults:
        # One row for each task: what came last, a task that has ended rather than that it runs.
        tasks = {
            (row.run_pk, row.attempt, row.task_id): row for entry in group for row in entry.tasks
        }
        return SaveResults(
            self._executor,
            sorted({entry.order.run_pk for entry in group}),
            list(tasks.values()),
            [self._end_row(entry, entry.end) for entry in group if entry.end is not None],
            self._database.relay.sender,
        )

    async def _announce_ends(self, group: Sequence[Entry], held: Mapping[int, HeldRun]) -> None:
        # Also for what had been written before: perhaps by a commit whose outcome nobody saw.
        ended = {
            entry.order.dag_id
            for entry in group
            if entry.end is not None and _is_held(entry.order, held)
        }
        if ended:
            await self._database.announce_here({Signal.RUNS_ENDED: ended})

    def _is_ours(self, entry: Entry, held: Mapping[int, HeldRun]) -> bool:
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

    def _wait_step(self, entry: Entry, wait: Wait) -> Step:
        order = entry.order
        return note_wait(
            executor=self._executor,
            run_pk=order.run_pk,
            attempt=order.attempt,
            waiting_for=wait.reason,
            waiting_since=None if wait.reason is None else wait.since,
        )

    def _end_row(self, entry: Entry, end: RunEnd) -> RunEndRow:
        order = entry.order
        refused = self._refused.get(_attempt(order))
        if refused is not None and end.state == RunState.SUCCESS:
            end = dataclasses.replace(end, state=RunState.FAILED, error=refused)
        return RunEndRow(
            order.run_pk,
            order.attempt,
            RunState(end.state),
            end.ended_at,
            end.error,
            end.exit_code,
        )


def _attempt(order: RunOrder) -> tuple[int, int]:
    return order.run_pk, order.attempt


def _is_held(order: RunOrder, held: Mapping[int, HeldRun]) -> bool:
    run = held.get(order.run_pk)
    return run is not None and run.attempt == order.attempt


def _task_row(order: RunOrder, task: TaskResult) -> TaskRow:
    return TaskRow(
        order.run_pk,
        order.attempt,
        task.task_id,
        TaskState(task.state),
        task.try_number,
        task.started_at,
        task.ended_at,
        task.error,
    )
