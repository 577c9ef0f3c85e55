"""Makes the runs that waiting events ask for.

woken by commits, with a slow sweep as a safety net.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.domain.conditions import condition_from_json
from triggerer.domain.runs import RunType
from triggerer.errors import DagError, OutcomeUnknown, StoreError, TriggererError
from triggerer.scheduler.decide import DagSnapshot, Decisions, RunsToCreate, WaitingAsset, decide
from triggerer.store.database import Database
from triggerer.store.queries.new_run import CreatedRun, CreateRun, Takes, Unchanged
from triggerer.store.queries.runs import (
    SNAPSHOT,
    WaitingRow,
    create_run,
    find_candidates,
    lock_and_read,
    waiting_rows,
)
from triggerer.store.script import Script
from triggerer.store.wakeups import ALL, Announced, Signal, Wakeups

_log = structlog.get_logger(__name__)

SWEEP_INTERVAL: Final = timedelta(seconds=30)
MAX_RUNS_PER_LOOP: Final = 32
# So many DAGs are locked and read in one transaction.
_MAX_DAGS: Final = 100
# Queued events of one asset are counted this far; a DAG that has more is looked at again.
_BOUND: Final = 1_000
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 5.0
_TICK: Final = timedelta(microseconds=1)
_NOBODY_CALLED: Final[Announced] = {Signal.EVENTS_QUEUED: {ALL}}


class Scheduler:
    """Creates asset-triggered runs. Several may run at once: each DAG is locked while one decides.

    Every queued event goes into exactly one run of its DAG: the run and the move of its events are
    one transaction. The DAG's file is never loaded here.

    Args:
        wakeups: As a rule `database.wakeups`.
        max_dagruns_to_create_per_loop: Bounds one transaction.
        sweep_interval: How long an event can wait at worst, should a wakeup be lost.
    """

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups | None = None,
        *,
        max_dagruns_to_create_per_loop: int = MAX_RUNS_PER_LOOP,
        sweep_interval: timedelta = SWEEP_INTERVAL,
    ) -> None:
        self._database = database
        self._wakeups = wakeups or database.wakeups
        self._limit = max(max_dagruns_to_create_per_loop, 1)
        self._sweep_interval = sweep_interval
        self._failures = 0
        # Ordered: who was left out last time is first this time.
        self._dirty: dict[str, None] = {}
        self._sweep_due = True
        self._held: frozenset[str] = frozenset()
        self._reported: dict[str, str] = {}
        self.trouble: TriggererError | None = None
        """Why no runs can be made at present; None while all is well."""
        self.runs_created = 0

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Create runs until cancelled; started once nothing that is announced can be missed.

        Cancellation: A transaction that has not committed is rolled back; what it was about is
        found again by the sweep with which the next one starts.
        """
        signals = (Signal.EVENTS_QUEUED, Signal.RUNS_ENDED, Signal.DAGS_CHANGED)
        with self._wakeups.subscribe(*signals) as subscription:
            task_status.started()
            while True:
                self._note(subscription.take_nowait())
                if not self._dirty and not self._sweep_due:
                    woken = await subscription.wait(self._sweep_interval)
                    self._note(woken or _NOBODY_CALLED)
                await self._turn()

    async def run_once(self) -> int:
        """Look at every DAG and create all runs that are due now; return how many.

        Raises:
            StoreError: The database did not do its part; some of the runs may exist.
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
                # The end of a run makes nothing due but what the cap had held back when we last
                # looked: whatever was queued since has woken us by itself.
                dag_ids &= self._held
            self._dirty.update(dict.fromkeys(sorted(dag_ids - {ALL})))

    async def _turn(self) -> None:
        try:
            await self._work()
        except StoreError as error:
            # Nothing was written, or (outcome unknown) a second look finds what there is left to
            # do.
            self.trouble = error
            delay = min(_FIRST_DELAY_S * 2 ** min(self._failures, 20), _LONGEST_DELAY_S)
            delay *= random.uniform(0.5, 1.0)
            self._failures += 1
            _log.warning("runs wait for the database", error=str(error), retry_after_s=delay)
            await anyio.sleep(delay)
        else:
            self._failures = 0
            self.trouble = None

    async def _work(self) -> None:
        """Handle one chunk of what is dirty; whatever was not handled is dirty afterwards."""
        if self._sweep_due:
            async with self._database.reading() as session:
                candidates = await find_candidates(session)
            self._dirty.update(dict.fromkeys(candidates))
            self._sweep_due = False
        chunk = list(self._dirty)[:_MAX_DAGS]
        if not chunk:
            return
        plan = await self._plan_alone(chunk)
        if plan is None:
            plan = await self._database.perform(_plan(chunk, limit=self._limit))
        self._report(plan)
        self._done(chunk, plan)

    async def _plan_alone(self, chunk: Sequence[str]) -> _Plan | None:
        """Plan for a single DAG in two round trips, without a lock; None: it takes a transaction.

        A look, and a statement that makes the run unless somebody has changed the DAG's row since. With the lock it
        would be four round trips, which are most of what a run costs where one message comes at a time.
        """
        if len(chunk) > 1 or self._database.dialect == "sqlite":
            return None
        rows = waiting_rows(await self._database.once(SNAPSHOT(dag_ids=list(chunk), bound=_BOUND)))
        look = _look(rows, chunk, limit=self._limit)
        if not look.decisions.runs:
            return look.plan(())
        (due,) = look.decisions.runs
        if due.count > 1:
            return None
        row = rows[0]
        assert row.version is not None
        unchanged = Unchanged(row.version, self._database.relay.sender)
        step = CreateRun(
            due.dag_id,
            RunType.ASSET_TRIGGERED,
            row.params,
            run_after=None,
            run_id=None,
            takes=_takes(due),
            unchanged=unchanged,
        )
        announced: Announced = {Signal.RUNS_QUEUED: {due.dag_id}}
        try:
            made = await self._database.once(step)
        except OutcomeUnknown:
            # Perhaps it did commit; a wakeup too many does no harm.
            await self._database.announce_here(announced)
            raise
        if not made:
            return None
        await self._database.announce_here(announced)
        ((pk, run_id, run_after),) = made
        return look.plan((CreatedRun(pk, due.dag_id, run_id, run_after),))

    def _done(self, chunk: Sequence[str], plan: _Plan) -> None:
        for dag_id in chunk:
            self._dirty.pop(dag_id, None)
        decisions = plan.decisions
        # A DAG that could take all the runs of every loop goes behind those that got none.
        self._held = (self._held - set(chunk)) | set(decisions.held)
        self._dirty = dict.fromkeys((*decisions.left_out, *self._dirty, *decisions.look_again))
        self.runs_created += len(plan.created)

    def _report(self, plan: _Plan) -> None:
        """One DAG of another release must not stop the others; said once for each reason."""
        for dag_id in plan.readable:
            self._reported.pop(dag_id, None)
        for dag_id, reason in plan.unreadable.items():
            if self._reported.get(dag_id) != reason:
                self._reported[dag_id] = reason
                _log.error("a schedule cannot be read", dag_id=dag_id, error=reason)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one transaction has decided and done."""

    decisions: Decisions
    created: tuple[CreatedRun, ...]
    readable: tuple[str, ...]
    unreadable: Mapping[str, str]
    """DAG id to the reason."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What is to be done about what the database showed."""

    decisions: Decisions
    readable: tuple[str, ...]
    unreadable: Mapping[str, str]

    def plan(self, created: tuple[CreatedRun, ...]) -> _Plan:
        return _Plan(self.decisions, created, self.readable, self.unreadable)


def _look(rows: Sequence[WaitingRow], dag_ids: Sequence[str], *, limit: int) -> _Look:
    snapshots, unreadable = _read(rows)
    order = {dag_id: place for place, dag_id in enumerate(dag_ids)}
    snapshots.sort(key=lambda dag: order[dag.dag_id])
    decisions = decide(snapshots, limit=limit, bound=_BOUND)
    return _Look(decisions, tuple(dag.dag_id for dag in snapshots), unreadable)


def _plan(dag_ids: Sequence[str], *, limit: int) -> Script[_Plan]:
    rows = yield from lock_and_read(dag_ids, bound=_BOUND)
    look = _look(rows, dag_ids, limit=limit)
    params = {row.dag_id: row.params for row in rows}
    created: list[CreatedRun] = []
    for due in look.decisions.runs:
        created += yield from _create(due, params[due.dag_id])
    return look.plan(tuple(created))


def _takes(due: RunsToCreate) -> Takes:
    return Takes(due.events_per_run, () if due.events_per_run is None else tuple(due.asset_ids))


def _create(due: RunsToCreate, params: Mapping[str, Any]) -> Script[list[CreatedRun]]:
    created: list[CreatedRun] = []
    while len(created) < due.count:
        # In the order of their events, and each with an id of its own at the first try.
        run_after = created[-1].run_after + _TICK if created else None
        run = yield from create_run(
            due.dag_id,
            run_type=RunType.ASSET_TRIGGERED,
            run_after=run_after,
            params=params,
            takes=_takes(due),
        )
        created.append(run)
    return created


def _read(rows: Iterable[WaitingRow]) -> tuple[list[DagSnapshot], dict[str, str]]:
    """What `decide` looks at, and why some DAGs are not among it."""
    snapshots: list[DagSnapshot] = []
    unreadable: dict[str, str] = {}
    for dag_id, group in groupby(rows, key=lambda row: row.dag_id):
        waiting = list(group)
        first = waiting[0]
        try:
            condition = condition_from_json(first.schedule)
        except DagError as error:
            unreadable[dag_id] = str(error)
            continue
        snapshots.append(
            DagSnapshot(
                dag_id,
                condition,
                first.max_active_runs,
                first.active_runs,
                first.events_per_run,
                _waiting_assets(waiting),
            )
        )
    return snapshots, unreadable


def _waiting_assets(rows: Sequence[WaitingRow]) -> tuple[WaitingAsset, ...]:
    assets = []
    for asset_id, group in groupby(rows, key=lambda row: row.asset_id):
        same = list(group)
        aliases = frozenset(row.alias for row in same if row.alias is not None)
        first = same[0]
        assets.append(WaitingAsset(asset_id, first.name, first.uri, first.queued, aliases))
    return tuple(assets)
