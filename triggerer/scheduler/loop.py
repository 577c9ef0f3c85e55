"""The scheduler's loop: it sleeps until a commit or the clock makes a DAG due, and then creates the DAG's runs.

A look is the decision about one DAG: which runs to create now. A DAG is ready while it waits for a look.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.timetables import clock
from triggerer.errors import StoreError, TriggererError
from triggerer.observability.metrics.table import RUNS_CREATED
from triggerer.scheduler.optimistic import OptimisticPlanner
from triggerer.scheduler.plan import Plan, plan_locked
from triggerer.scheduler.ready import Alarms, ReadyQueue
from triggerer.store.dags import candidates
from triggerer.store.dags.candidates import DueTimes
from triggerer.store.dags.snapshots import CLOCK_STEP
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import ALL, Announced, Signal, Wakeups

_log = structlog.get_logger(__name__)

SWEEP_INTERVAL: Final = timedelta(seconds=30)
MAX_RUNS_PER_LOOP: Final = 32
# The most DAGs to lock and read in one transaction.
_MAX_DAGS: Final = 100


class Scheduler:
    """Creates the runs that assets and timetables ask for. Several schedulers can run at once.

    No two schedulers create the same run:

    - A scheduler locks the DAG's row while it decides, or creates the run only if the row is unchanged since the read.
    - The id of a timed run contains its instant. So the database refuses a second run for the instant.
    - One transaction creates a run and takes its events. So no other run of the DAG takes an event again, except runs
      of other partition keys.

    The scheduler sleeps until a commit wakes it, or until an alarm, such as the end of a DAG's `min_run_gap`. The
    database's time determines the alarms. A monotonic clock measures the sleep.

    Every `sweep_interval`, a sweep reads which DAGs have queued events, and when timed runs are due. So events whose
    wake-up was lost are found. After a clock was set, the sweep makes all timed DAGs ready for a look.

    The scheduler never loads a DAG's file.

    Args:
        wakeups: By default `database.wakeups`.
        max_dagruns_to_create_per_loop: The most runs to create in one transaction.
        sweep_interval: The longest delay of a DAG after a lost wake-up or a change of a clock.
        random: For the jitter of retries.
        find_candidates: Returns the ids of the DAGs with queued events, given a session.
        find_due_times: Returns when DAGs are due, given a session.
    """

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups | None = None,
        *,
        max_dagruns_to_create_per_loop: int = MAX_RUNS_PER_LOOP,
        sweep_interval: timedelta = SWEEP_INTERVAL,
        random: Random | None = None,
        find_candidates: Callable[[Any], Awaitable[list[str]]] = candidates.find_candidates,
        find_due_times: Callable[[Any], Awaitable[DueTimes]] = candidates.find_due_times,
    ) -> None:
        self._database = database
        self._wakeups = wakeups or database.wakeups
        self._limit = max(max_dagruns_to_create_per_loop, 1)
        self._sweep_interval = sweep_interval
        self._find_candidates = find_candidates
        self._find_due_times = find_due_times
        # `OptimisticPlanner` saves the round trips of a lock. SQLite has no round trips, and only one writer at a time.
        self._optimistic_planner = (
            None if database.dialect == "sqlite" else OptimisticPlanner(database, limit=self._limit)
        )
        self._backoff = Backoff(first=0.05, longest=5.0, random=random or Random())
        self._ready = ReadyQueue()
        self._alarms = Alarms()
        self._sweep_due = True
        self._swept_at: datetime | None = None
        """The database's time at the last sweep; None before the first sweep."""
        self._ahead = timedelta()
        """How far the host's clock was ahead of the database's clock at the last sweep."""
        self._waits = False
        """True if other schedulers had locked all DAGs of the last plan. The next plan waits for the locks."""
        self._waits_for_end: frozenset[str] = frozenset()
        """DAGs that, at their last look, waited for a run to end."""
        self._reported: dict[str, str] = {}
        """Why a schedule cannot be read, by DAG id, as last logged."""
        self.trouble: TriggererError | None = None
        """The error that stops the creation of runs at present, or None."""
        self.runs_created = 0

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Create runs until cancelled. `task_status` reports the start once wake-ups are subscribed.

        Cancellation: A transaction that has not committed is rolled back. The next scheduler begins with a
            sweep, which finds all events that still wait.
        """
        signals = (Signal.EVENTS_QUEUED, Signal.RUNS_ENDED, Signal.DAGS_CHANGED)
        with self._wakeups.subscribe(*signals) as subscription:
            task_status.started()
            sweep_at = -math.inf
            while True:
                self._mark_ready(subscription.take_nowait())
                now = anyio.current_time()
                self._ready.add(self._alarms.take_due(now), by_clock=True)
                if now >= sweep_at:
                    self._sweep_due = True
                if self._sweep_due:
                    sweep_at = now + self._sweep_interval.total_seconds()
                elif not self._ready:
                    until = min(sweep_at, self._alarms.next)
                    self._mark_ready(
                        await subscription.wait(timedelta(seconds=max(until - now, 0)))
                    )
                    continue
                await self._turn()

    async def run_once(self) -> int:
        """Create all runs that are due now, of all DAGs; return how many.

        Raises:
            StoreError: The database failed. Some of the runs may exist.
        """
        before = self.runs_created
        self._sweep_due = True
        while self._sweep_due or self._ready:
            await self._work()
        return self.runs_created - before

    def _mark_ready(self, woken: Announced) -> None:
        for signal, dag_ids in woken.items():
            if ALL in dag_ids:
                self._sweep_due = True
            if signal is Signal.RUNS_ENDED:
                # The end of a run matters only to a DAG that waited for it at its last look.
                dag_ids &= self._waits_for_end
            self._ready.add(sorted(dag_ids - {ALL}))

    async def _turn(self) -> None:
        try:
            await self._work()
        except StoreError as error:
            # Either nothing was written, or the outcome is unknown. In both cases the next attempt reads the database
            # again, and finds what is left to do.
            self.trouble = error
            delay = self._backoff.next_delay()
            warn_seldom(
                _log,
                self._backoff.failures,
                "runs wait for the database",
                error=str(error),
                retry_after_s=round(delay, 3),
            )
            await anyio.sleep(delay)
        else:
            self._backoff.reset()
            self.trouble = None

    async def _work(self) -> None:
        """Create the runs of one chunk of the ready DAGs. A DAG with more due runs stays ready."""
        if self._sweep_due:
            await self._sweep()
        # Nearly every DAG that the clock makes ready gets a run, and one transaction creates at most `_limit` runs. So
        # take at most `_limit` of these DAGs.
        chunk, by_clock = self._ready.take(_MAX_DAGS, by_clock=self._limit)
        if not chunk:
            return
        try:
            plan = await self._plan(chunk)
        except BaseException:
            self._ready.add_first(chunk, by_clock=by_clock)
            raise
        self._report(plan)
        self._done(plan, by_clock)

    async def _sweep(self) -> None:
        async with self._database.reading() as session:
            due_times = await self._find_due_times(session)
            found = await self._find_candidates(session)
        self._sweep_due = False
        self._ready.add(found)
        # Look at all timed DAGs again if a clock was set. After the database's clock was set forward, a DAG may be due
        # before its alarm. While the host's clock was wrong, timetables may have answered wrongly. The first sweep also
        # looks at all timed DAGs, because a clock may have been set while no scheduler was running.
        ahead = clock.now() - due_times.now
        may_be_set = (
            self._swept_at is None
            or due_times.now < self._swept_at
            or abs(ahead - self._ahead) > CLOCK_STEP
        )
        self._swept_at, self._ahead = due_times.now, ahead
        here = anyio.current_time()
        for dag_id, due in due_times.due.items():
            if may_be_set or due <= due_times.now:
                self._ready.add([dag_id], by_clock=True)
            else:
                self._alarms.set(dag_id, here + (due - due_times.now).total_seconds())

    async def _plan(self, chunk: Sequence[str]) -> Plan:
        if (optimistic := self._optimistic_planner) is not None:
            if len(chunk) > 1 and not self._waits:
                return await optimistic.plan_many(chunk)
            if len(chunk) == 1 and (plan := await optimistic.plan(chunk[0])) is not None:
                return plan
        return await self._plan_locked(chunk)

    async def _plan_locked(self, chunk: Sequence[str]) -> Plan:
        # Usually a plan skips DAGs that other schedulers have locked. The skipped DAGs stay ready. But if all DAGs are
        # locked, the loop would spin until the locks are free. So the plan waits for the locks if the chunk is a single
        # DAG, or if all DAGs of the previous chunk were locked.
        waits = len(chunk) == 1 or self._waits
        return await self._database.perform(plan_locked(chunk, limit=self._limit, waits=waits))

    def _done(self, plan: Plan, by_clock: bool) -> None:
        looked_at = {found.dag_id for found in plan.looks}
        unserved = set(plan.unserved)
        self._waits_for_end = (self._waits_for_end - looked_at) | {
            found.dag_id for found in plan.looks if found.waits_for_end
        }
        again = [
            one.dag_id for one in plan.looks if one.is_cut_short and one.dag_id not in unserved
        ]
        self._ready.add_first(plan.unserved, by_clock=by_clock)
        # DAGs that got runs and have more to do go to the end of the queue, behind DAGs that got no run. Otherwise one
        # DAG with many events could use up the limit of every transaction.
        self._ready.add(again, by_clock=by_clock)
        self._set_alarms(plan)
        self._ready.add(plan.locked, by_clock=by_clock)
        self._waits = bool(plan.locked) and not looked_at
        self.runs_created += plan.runs_created
        if plan.runs_created:
            RUNS_CREATED.add(plan.runs_created)

    def _set_alarms(self, plan: Plan) -> None:
        if plan.now is None:
            return
        here = anyio.current_time()
        for found in plan.looks:
            at = found.wake_at(plan.now)
            self._alarms.set(
                found.dag_id, None if at is None else here + (at - plan.now).total_seconds()
            )

    def _report(self, plan: Plan) -> None:
        """Log each DAG whose schedule cannot be read, once for each reason. The other DAGs still get their runs."""
        for found in plan.looks:
            self._reported.pop(found.dag_id, None)
        for dag_id, reason in plan.unreadable.items():
            if self._reported.get(dag_id) != reason:
                self._reported[dag_id] = reason
                _log.error("a schedule cannot be read", dag_id=dag_id, error=reason)
