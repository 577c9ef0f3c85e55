"""Creates the runs that waiting events ask for: woken by commits, and by a slow sweep as a safety net."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.errors import StoreError, TriggererError
from triggerer.scheduler.optimistic import OptimisticPlanner
from triggerer.scheduler.plan import Plan, plan_locked
from triggerer.store.engine.database import Database
from triggerer.store.queries.scheduling import candidates
from triggerer.store.wakeups.signals import ALL, Announced, Signal, Wakeups

_log = structlog.get_logger(__name__)

SWEEP_INTERVAL: Final = timedelta(seconds=30)
MAX_RUNS_PER_LOOP: Final = 32
# DAGs that are locked and read in one transaction.
_MAX_DAGS: Final = 100
_SWEEP_ALL: Final[Announced] = {Signal.EVENTS_QUEUED: {ALL}}


class Scheduler:
    """Creates asset-triggered runs. Several schedulers may run at once.

    Each decides under a lock of the DAG's row, or creates the run on condition that the row has not changed since it
    was read. Every queued event goes into exactly one run of its DAG: the run is created, and its events are moved, in
    one transaction. The DAG's file is never loaded here.

    Args:
        wakeups: As a rule `database.wakeups`.
        max_dagruns_to_create_per_loop: At most so many runs are created in one transaction.
        sweep_interval: The longest that an event can wait if a wakeup is lost.
        random: For the jitter of retries.
        find_candidates: The DAGs for which an event waits, asked in a session that reads.
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
    ) -> None:
        self._database = database
        self._wakeups = wakeups or database.wakeups
        self._limit = max(max_dagruns_to_create_per_loop, 1)
        self._sweep_interval = sweep_interval
        self._find_candidates = find_candidates
        # On SQLite, which has one writer at a time, a plan under a lock is a single turn of the connection's thread.
        self._optimistic_planner = (
            None if database.dialect == "sqlite" else OptimisticPlanner(database, limit=self._limit)
        )
        self._backoff = Backoff(first=0.05, longest=5.0, random=random or Random())
        # Ordered: a DAG that got no run last time comes first.
        self._dirty: dict[str, None] = {}
        self._sweep_due = True
        self._at_capacity: frozenset[str] = frozenset()
        self._reported: dict[str, str] = {}
        self.trouble: TriggererError | None = None
        """Why no runs can be created at present; None if they can."""
        self.runs_created = 0

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Create runs until cancelled; started once it is subscribed to announcements.

        Cancellation: A transaction that has not committed is rolled back. The next scheduler begins with a
        sweep, which finds the same events again.
        """
        signals = (Signal.EVENTS_QUEUED, Signal.RUNS_ENDED, Signal.DAGS_CHANGED)
        with self._wakeups.subscribe(*signals) as subscription:
            task_status.started()
            while True:
                self._note(subscription.take_nowait())
                if not self._dirty and not self._sweep_due:
                    woken = await subscription.wait(self._sweep_interval)
                    self._note(woken or _SWEEP_ALL)
                await self._turn()

    async def run_once(self) -> int:
        """Create all runs that are due now, of all DAGs; return how many.

        Raises:
            StoreError: From the database; some of the runs may exist.
        """
        before = self.runs_created
        self._sweep_due = True
        while self._sweep_due or self._dirty:
            await self._work()
        return self.runs_created - before

    def _note(self, woken: Announced) -> None:
        for signal, dag_ids in woken.items():
            if ALL in dag_ids:
                self._sweep_due = True
            if signal is Signal.RUNS_ENDED:
                # The end of a run only makes DAGs due that were at their capacity when we last planned for them:
                # events that were queued since then have woken us by themselves.
                dag_ids &= self._at_capacity
            self._dirty.update(dict.fromkeys(sorted(dag_ids - {ALL})))

    async def _turn(self) -> None:
        try:
            await self._work()
        except StoreError as error:
            # Nothing was written, or the outcome is unknown: the next attempt finds what is left to do.
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
        """Plan for one chunk of the dirty DAGs; those that are not done stay dirty."""
        if self._sweep_due:
            async with self._database.reading() as session:
                found = await self._find_candidates(session)
            self._dirty.update(dict.fromkeys(found))
            self._sweep_due = False
        chunk = list(self._dirty)[:_MAX_DAGS]
        if not chunk:
            return
        plan = None
        if len(chunk) == 1 and self._optimistic_planner is not None:
            plan = await self._optimistic_planner.plan(chunk[0])
        if plan is None:
            plan = await self._database.perform(plan_locked(chunk, limit=self._limit))
        self._report(plan)
        self._done(chunk, plan)

    def _done(self, chunk: Sequence[str], plan: Plan) -> None:
        for dag_id in chunk:
            self._dirty.pop(dag_id, None)
        decisions = plan.decisions
        # A DAG that could use up the limit of every loop goes behind those that got no run.
        self._at_capacity = (self._at_capacity - set(chunk)) | set(decisions.at_capacity)
        self._dirty = dict.fromkeys((*decisions.unserved, *self._dirty, *decisions.recheck))
        self.runs_created += plan.runs_created

    def _report(self, plan: Plan) -> None:
        """Log each DAG whose schedule cannot be read, once for each reason. It must not stop the others."""
        for dag_id in plan.readable:
            self._reported.pop(dag_id, None)
        for dag_id, reason in plan.unreadable.items():
            if self._reported.get(dag_id) != reason:
                self._reported[dag_id] = reason
                _log.error("a schedule cannot be read", dag_id=dag_id, error=reason)
