"""Stores the results of runs. The results that wait in memory are a *group*, and go into one transaction."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import anyio
import structlog

from triggerer.backoff import Backoff, log_failure, retry, warn_seldom
from triggerer.domain.attempts import RunEnd, RunOrder, Wait
from triggerer.domain.launches import Launch
from triggerer.domain.runs import RunState
from triggerer.errors import (
    OutcomeUnknown,
    RowRefused,
    StoreError,
    TransientStoreError,
    TriggererError,
)
from triggerer.executor.emissions import record_emitted
from triggerer.executor.unbegun import hold_unbegun
from triggerer.observability.metrics.table import (
    DAG_RUN_SECONDS,
    DAG_RUNS,
    RUN_DURATION,
    RUNS,
)
from triggerer.store.database.group_commit import GroupCommit
from triggerer.store.database.script import Row, Step, all_steps, perform, single_step
from triggerer.store.database.transactions import Database, StepsRefused
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.attempts.steps import (
    begin_run,
    save_launches,
    settle_attempts,
)
from triggerer.store.runs.callbacks import mark_due
from triggerer.store.runs.results import (
    AttemptUpdate,
    RunClaim,
    SaveResults,
    run_claims,
)
from triggerer.store.runs.transitions import record_wait
from triggerer.synchronization import Notifier

_log = structlog.get_logger(__name__)

_LARGEST_GROUP: Final = 200
"""The most updates in one group. A larger group gains nothing, and would block other writers of SQLite for long."""

_REFUSED_ERROR: Final = "the store refused the error of this run; the service's log says why"

_JOINED_STEP_SECONDS: Final = 60.0
"""How long a cancelled caller waits for the result of its statement. The result usually comes sooner."""


class _JoinedStep:
    """A statement that is performed together with the next group, and its result."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.done = anyio.Event()
        self.answer: list[Row] | Exception = []

    def end(self, answer: list[Row] | Exception) -> None:
        self.answer = answer
        self.done.set()


class ResultWriter(GroupCommit[list[AttemptUpdate]]):
    """Accepts results without waiting, and stores them as soon as the previous group is stored.

    If the store is unavailable, results wait in order. An update is dropped if the store shows that another attempt has
    the run.

    Args:
        counts_dags: True: the metrics also count the runs of each single DAG.
    """

    refusals = RowRefused

    def __init__(self, database: Database, executor: str, *, counts_dags: bool = False) -> None:
        super().__init__(Backoff(first=0.2, longest=10.0))
        self._counts_dags = counts_dags
        self._database = database
        self.executor = executor
        self._updates: deque[AttemptUpdate] = deque()
        self._joined_steps: list[_JoinedStep] = []
        self._written = Notifier()
        self._unwritten: Counter[int] = Counter()
        # By (run, epoch): why the store refused a result of this attempt. The entry stays until the attempt's end is
        # stored.
        self._refused: dict[tuple[int, int], str] = {}

    def submit_nowait(self, update: AttemptUpdate) -> None:
        """Add an update. Updates of one run are stored in order."""
        self._updates.append(update)
        self._unwritten[update.order.run_pk] += 1
        if self._is_idle:
            self._wake()

    async def perform_with_next_commit(self, step: Step) -> list[Row]:
        """Perform a step together with the next group of updates; return the step's rows.

        If no update waits, the step is performed alone.

        An executor usually stores the end of a run and claims the next run at once. On SQLite, they then need one
        transaction instead of two. On PostgreSQL they may be two transactions, see `Database.perform_steps`.

        Raises:
            RowRefused: The store refused this step. Other steps and the group do not cause this error.
            Other errors of `Database.perform_steps`. The group is stored nevertheless, by this commit or a later one.
        Cancellation: A step that has begun is finished, and its rows are returned.
        """
        joined = _JoinedStep(step)
        self._joined_steps.append(joined)
        if self._is_idle:
            self._wake()
        try:
            await joined.done.wait()
        except BaseException:
            if joined in self._joined_steps:
                self._joined_steps.remove(joined)
                raise
            # Only this caller can learn the result of the step, such as which runs it claimed.
            with anyio.move_on_after(_JOINED_STEP_SECONDS, shield=True):
                await joined.done.wait()
            if not joined.done.is_set():
                raise
        if isinstance(joined.answer, Exception):
            raise joined.answer
        return joined.answer

    async def begin(self, order: RunOrder) -> bool:
        """Store that an attempt begins, and return whether this executor still has the run.

        Waits while the store is unavailable.

        Cancellation: The attempt's start may have been stored, or not. It is not stored later.
        """
        step = begin_run(executor=self.executor, run_pk=order.run_pk, epoch=order.epoch)
        # If the outcome is unknown, `retry` performs the step again. A second success changes nothing.
        rows = await retry(
            lambda: self.perform_with_next_commit(step),
            on=TransientStoreError,
            backoff=Backoff(first=0.2, longest=10.0),
            on_failure=log_failure(_log, "a run waits for the store to begin", run=order.run_id),
        )
        if not rows:
            _log.warning("a run was given to another attempt before it began", run=order.run_id)
        return bool(rows)

    async def store_launch(self, order: RunOrder, launch: Launch) -> bool:
        """Store the new state of a launch. Return whether this executor still has the run.

        Raises:
            Errors of `perform_with_next_commit`.
        """
        step = save_launches(executor=self.executor, news=[(order, launch)])
        assert step is not None
        return bool(await self.perform_with_next_commit(step))

    @property
    def unwritten(self) -> frozenset[int]:
        """The primary keys of the runs with updates that are not stored yet."""
        return frozenset(self._unwritten)

    async def written(self, run_pk: int | None = None) -> None:
        """Wait until all updates of this run are stored. None: the updates of all runs."""
        while self._unwritten if run_pk is None else run_pk in self._unwritten:
            await self._written.wait()

    def _take(self) -> list[AttemptUpdate] | None:
        if not self._updates and not self._joined_steps:
            return None
        return [self._updates.popleft() for _ in range(min(len(self._updates), _LARGEST_GROUP))]

    async def _write(self, group: list[AttemptUpdate]) -> None:
        joined_steps, self._joined_steps = self._joined_steps, []
        try:
            try:
                await self._write_with(group, joined_steps)
            except RowRefused:
                left = [joined for joined in joined_steps if not joined.done.is_set()]
                if not left:
                    raise
                # The refused transaction had the group and the joined steps. Separate them: a refused step must not
                # fail an update of the group, or another step. If the store refuses an update, `GroupCommit` searches
                # for this update.
                await self._perform_joined(left)
                await self._write_with(group, [])
        except BaseException as error:
            stopped = OutcomeUnknown("the result writer was stopped")
            for joined in joined_steps:
                if not joined.done.is_set():
                    joined.end(error if isinstance(error, Exception) else stopped)
            if group or not isinstance(error, StoreError):
                raise
            return
        self._mark_written(group)

    async def _perform_joined(self, joined_steps: Sequence[_JoinedStep]) -> None:
        if joined_steps:
            _end_joined(
                joined_steps, await self._perform_steps([joined.step for joined in joined_steps])
            )

    async def _perform_steps(self, steps: Sequence[Step]) -> Sequence[list[Row] | RowRefused]:
        """Perform steps; return the rows of each step, or the error with which the store refused it."""
        try:
            return await self._database.perform_steps(steps)
        except StepsRefused as refused:
            return refused.answers

    async def _write_with(
        self, group: Sequence[AttemptUpdate], joined_steps: Sequence[_JoinedStep]
    ) -> None:
        """Store a group and perform joined steps, if possible in one transaction.

        Raises:
            RowRefused: The store refused an update or, if a joined step has no answer, perhaps this step.
            Other errors of `Database.perform_steps`.
        """
        unheld = await hold_unbegun(self._database, self.executor, group)
        if not unheld:
            await self._perform_joined(joined_steps)
            return
        steps = [joined.step for joined in joined_steps]
        group = [self._fail_if_refused(update) for update in unheld]
        save = SaveResults(self.executor, group, self._database.transport.sender)
        before, after = self._launch_steps(group)
        # The steps that store waits change only running runs. Perform them after `save`, so that a run that `save` ends
        # is not shown as waiting.
        after += [
            self._wait_step(update.order, update.wait)
            for update in group
            if update.wait is not None
        ]
        calls_back = any(
            update.end is not None and update.order.calls_back(update.end.state) for update in group
        )
        if not calls_back and not any(task.events for update in group for task in update.tasks):
            in_order = [*before, save, *after, *steps]
            if before:
                # Use one transaction, because a run without open launches is not looked at again. An attempt that was
                # not settled with its last launch would stay unknown for ever.
                answers: Sequence[list[Row] | RowRefused] = await self._database.perform(
                    all_steps(in_order)
                )
            else:
                answers = await self._perform_steps(in_order)
            joined_from = len(in_order) - len(steps)
            _end_joined(joined_steps, answers[joined_from:])
            own = [_rows_of(answer) for answer in answers[:joined_from]]
            claims = run_claims(own[len(before)])
            for update in group:
                self._is_ours(update, claims)
        else:
            async with self._database.transaction() as session:
                for step in before:
                    await perform(session, single_step(step))
                claims = run_claims(await perform(session, single_step(save)))
                ours = [update for update in group if self._is_ours(update, claims)]
                await record_emitted(session, ours)
                if calls_back:
                    ended = [one.order.run_pk for one in ours if one.end is not None]
                    await mark_due(session, ended)
                for step in after:
                    await perform(session, single_step(step))
                answers = [await perform(session, single_step(step)) for step in steps]
            _end_joined(joined_steps, answers)
        await self._announce_ends(group, claims)

    def _mark_written(self, group: Sequence[AttemptUpdate]) -> None:
        for update in group:
            self._unwritten[update.order.run_pk] -= 1
            if update.end is not None:
                self._refused.pop(_attempt(update.order), None)
        self._unwritten = +self._unwritten
        self._written.notify_all()

    def _record_failure(self, error: TriggererError, delay: float) -> None:
        warn_seldom(
            _log,
            self._backoff.failures,
            "results wait for the store",
            runs=len(self._unwritten),
            error=str(error),
            retry_after_s=round(delay, 3),
        )

    def _halves(
        self, group: list[AttemptUpdate]
    ) -> tuple[list[AttemptUpdate], list[AttemptUpdate]] | None:
        half = len(group) // 2
        return (group[:half], group[half:]) if half else None

    def _without_refused(
        self, group: list[AttemptUpdate], error: StoreError
    ) -> tuple[list[AttemptUpdate], ...]:
        (update,) = group
        if update.tasks:
            self._refused[_attempt(update.order)] = str(error)
            accepted = _failed_update(update, str(error))
        else:
            accepted = _without_texts(update)
            if accepted == update:
                # The update has no text of a user or a cluster, so the store would refuse every update.
                raise error
        _log.warning("the store refused a result", run=update.order.run_id, error=str(error))
        return ([accepted],)

    def _launch_steps(self, group: Sequence[AttemptUpdate]) -> tuple[list[Step], list[Step]]:
        """Return the steps that come before and after the step that saves the results.

        Save launches before the results, because the store accepts a launch only while its run is running.
        """
        news = [(update.order, launch) for update in group for launch in update.launches]
        save = save_launches(executor=self.executor, news=news)
        if save is None:
            return [], []
        return [save], [settle_attempts([order.run_pk for order, _ in news])]

    def _wait_step(self, order: RunOrder, wait: Wait) -> Step:
        return record_wait(
            executor=self.executor,
            run_pk=order.run_pk,
            epoch=order.epoch,
            waiting_for=wait.reason,
            waiting_since=None if wait.reason is None else wait.since,
        )

    def _fail_if_refused(self, update: AttemptUpdate) -> AttemptUpdate:
        """Return the update. If the store refused an earlier result of this attempt, change a success to a failure."""
        end = update.end
        refused = self._refused.get(_attempt(update.order))
        if end is None or refused is None or end.state is not RunState.SUCCESS:
            return update
        return replace(update, end=replace(end, state=RunState.FAILED, error=refused))

    async def _announce_ends(
        self, group: Sequence[AttemptUpdate], claims: Mapping[int, RunClaim]
    ) -> None:
        # Announce every end whose attempt still has its run, even if this commit changed nothing. If an earlier commit
        # of this group had an unknown outcome, that commit may have stored ends without announcing them. A queued run
        # has not ended: an earlier call of `hold_unbegun` queued it again.
        ends = [
            update
            for update in group
            if update.end is not None
            and _has_claim(update.order, claims)
            and claims[update.order.run_pk].state is not RunState.QUEUED
        ]
        for update in ends:
            self._count_end(update)
            _log_failure(update)
        if ended := {update.order.dag_id for update in ends}:
            await self._database.announce_here({Signal.RUNS_ENDED: ended})

    def _count_end(self, update: AttemptUpdate) -> None:
        """Count a stored end, for the metrics. After a commit with unknown outcome, an end may count twice."""
        end, order = update.end, update.order
        assert end is not None
        state = end.state.value
        seconds = max((end.ended_at - order.queued_at).total_seconds(), 0.0)
        RUNS.add(1, state)
        RUN_DURATION.observe(seconds, state)
        if self._counts_dags:
            DAG_RUNS.add(1, order.dag_id, state)
            DAG_RUN_SECONDS.add(seconds, order.dag_id, state)

    def _is_ours(self, update: AttemptUpdate, claims: Mapping[int, RunClaim]) -> bool:
        if _has_claim(update.order, claims):
            # If the run has ended already, this update ended it, in an earlier commit with unknown outcome.
            return claims[update.order.run_pk].state is RunState.RUNNING
        _log.warning(
            "a result came too late: the run was given to another attempt",
            dag=update.order.dag_id,
            run=update.order.run_id,
            attempt=update.order.attempt,
        )
        return False


def _end_joined(
    joined_steps: Sequence[_JoinedStep], answers: Sequence[list[Row] | RowRefused]
) -> None:
    for joined, answer in zip(joined_steps, answers, strict=True):
        joined.end(answer)


def _rows_of(answer: list[Row] | RowRefused) -> list[Row]:
    if isinstance(answer, RowRefused):
        raise answer
    return answer


def _attempt(order: RunOrder) -> tuple[int, int]:
    return order.run_pk, order.epoch


def _has_claim(order: RunOrder, claims: Mapping[int, RunClaim]) -> bool:
    run = claims.get(order.run_pk)
    return run is not None and run.epoch == order.epoch


def _failed_update(update: AttemptUpdate, reason: str) -> AttemptUpdate:
    """Return an update without events, to store instead of the refused `update`.

    If the refused update has events, its tasks are stored as failed. Otherwise its tasks are left out. If the refused
    update ends the run, the run fails.
    """
    end = update.end
    if not any(task.events for task in update.tasks):
        error = f"the store refused the run's results: {reason}"
        failed = RunEnd(RunState.FAILED, datetime.now(UTC), error)
        return replace(update, tasks=(), end=end and failed)
    names = ", ".join(task.task_id for task in update.tasks)
    error = f"the store refused the results of task {names}: {reason}"
    return replace(
        update,
        tasks=tuple(task.failed(error) for task in update.tasks),
        end=end and replace(end, state=RunState.FAILED, error=error),
    )


def _without_texts(update: AttemptUpdate) -> AttemptUpdate:
    """Return an update to store instead of the refused `update`, which has no tasks.

    The wait and the launches are left out. If the refused update has neither, its end gets a fixed error.
    """
    if update.wait is not None or update.launches:
        return replace(update, wait=None, launches=())
    end = update.end
    return replace(update, end=end and RunEnd(end.state, end.ended_at, _REFUSED_ERROR))


def _log_failure(update: AttemptUpdate) -> None:
    """Report a failed run in the service's log. `runs show` has the whole error."""
    order, end = update.order, update.end
    if end is None or end.state is not RunState.FAILED:
        return
    _log.warning("run failed", dag_id=order.dag_id, run_id=order.run_id, error=end.in_short or "")
