"""Bugs in the making of runs, by assets and by time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.domain.timetables import DagRunInfo, DataInterval, now
from triggerer.scheduler import decide, optimistic
from triggerer.scheduler.decide import _Queue, _Upcoming
from triggerer.scheduler.holds import Hold
from triggerer.scheduler.looks import DagSnapshot, NewRun
from triggerer.scheduler.loop import Scheduler
from triggerer.scheduler.plan import BOUND, Plan, evaluate
from triggerer.store.dags import candidates
from triggerer.store.dags.candidates import LockDags, lock_and_read
from triggerer.store.dags.due_moments import StoreNextRun
from triggerer.store.dags.snapshots import DagRow, ReadDags, dag_rows
from triggerer.store.database.script import Script
from triggerer.store.database.wakeups.signals import Announced, Signal
from triggerer.store.runs.creation.create_run_step import CreateRun
from triggerer.store.runs.creation.planned_runs import CreateRuns
from triggerer.testing.simulation.database.model import Store
from triggerer.testing.simulation.database.planning_writes import Locks, PlanningWrites


@mutation(rules="T5|T2|L2", seed=8, quick=True)
def a_due_moment_goes_before_its_run_is_stored() -> Replacements:
    """The time of the run after the due run is stored one transaction before the due run itself."""
    right = Scheduler._plan_locked

    def note(dag_ids: Sequence[str], limit: int) -> Script[None]:
        rows = yield from lock_and_read(dag_ids, bound=BOUND)
        for found in evaluate(rows, dag_ids, limit=limit).looks:
            info = found.next_info
            run_after = None if info is None else info.run_after
            interval = None if info is None else info.data_interval
            yield StoreNextRun(found.dag_id, run_after, interval, has_run=False)

    async def plan_locked(self: Scheduler, chunk: Sequence[str]) -> Plan:
        await self._database.perform(note(chunk, self._limit))
        return await right(self, chunk)

    yield right, plan_locked


@mutation(rules="T5|T2|L2", seed=8, quick=True)
def a_due_moment_is_lost_at_the_cap() -> Replacements:
    """A run that is due while its DAG is paused or at its cap counts as created."""
    right = decide._missing

    def missing(dag: DagSnapshot, upcoming: _Upcoming, queue: _Queue) -> Iterator[Hold]:
        if decide._blocking_holds(dag, decide._room(dag)) and upcoming.is_due:
            upcoming.advance()
        return right(dag, upcoming, queue)

    yield right, missing


@mutation(rules="T3|T5", seed=19)
def a_due_moment_is_read_from_the_wrong_clock() -> Replacements:
    """The host's clock, and not the database's, decides whether a timetable's run is due."""

    def is_due(self: _Upcoming) -> bool:
        return self.info is not None and (self._is_now or self.info.run_after <= now())

    yield _Upcoming.is_due, is_due


@mutation(rules="T5|L2", seed=62, quick=True)
def a_missed_tick_is_forgotten() -> Replacements:
    """A timetable that only looks ahead is asked again, and its last answer is forgotten."""
    right = _Upcoming.__init__

    def init(self: _Upcoming, dag: DagSnapshot) -> None:
        right(self, replace(dag, stored_info=None))

    yield right, init


@mutation(rules="S9|S4|T1|T4", seed=7, quick=True)
def a_run_is_made_on_a_stale_look() -> Replacements:
    """A scheduler reads a DAG before it locks the DAG, and decides by a row that may have changed."""
    right = candidates.lock_and_read

    def lock_and_read(
        dag_ids: Collection[str], *, bound: int, waits: bool = True
    ) -> Script[list[DagRow]]:
        if not (dag_ids and waits):
            return (yield from right(dag_ids, bound=bound, waits=waits))
        rows = dag_rows((yield ReadDags(list(dag_ids), bound)))
        yield LockDags(dag_ids)
        return rows

    yield right, lock_and_read


@mutation(rules="S4|S9", seed=5, quick=True)
def an_event_gets_two_runs_by_two_schedulers() -> Replacements:
    """Two schedulers read the waiting events without a lock before either has created its run."""

    def lock_and_read(
        dag_ids: Collection[str], *, bound: int, waits: bool = True
    ) -> Script[list[DagRow]]:
        return dag_rows((yield ReadDags(list(dag_ids), bound))) if dag_ids else []

    yield candidates.lock_and_read, lock_and_read


@mutation(rules="S4|S9", seed=3, quick=True)
def a_plan_is_carried_out_although_its_dag_changed() -> Replacements:
    """A scheduler reads a DAG without a lock, and creates runs that another scheduler has created meanwhile."""

    def create_run(*arguments: Any, **options: Any) -> CreateRun:
        return CreateRun(*arguments, **{**options, "unchanged": None})

    yield optimistic, CreateRun, create_run


@mutation(rules="S4|S9|T1|T2|T4|T5", seed=19)
def many_plans_are_carried_out_although_their_dags_changed() -> Replacements:
    """The statement that creates runs for many DAGs ignores that a DAG's row has changed since it was read."""
    right = PlanningWrites.perform

    async def perform(self: PlanningWrites, session: Locks, step: Any) -> Any:
        if not isinstance(step, CreateRuns):
            return await right(self, session, step)
        free = [dag for dag in step.dags if session.lock_free_row(dag.dag_id)]
        await session.store.faults.delay()
        return [(dag.dag_id, await self._create_all(session, dag)) for dag in free]

    yield right, perform


@mutation(rules="L1", seed=63)
def a_late_commit_is_skipped_by_a_cursor() -> Replacements:
    """A run takes only events with higher ids than all events of earlier runs.

    So an event that commits late is skipped.
    """

    def cursor(self: PlanningWrites, store: Store, dag_id: str, asset: int) -> int:
        taken = [at for at, run in store.queues[dag_id].items() if run]
        taken += [at for dag, at in self._taken_by if dag == dag_id]
        return max((at for at in taken if store.events[at] == asset), default=0)

    def remaining_events(self: PlanningWrites, store: Store, dag: Any) -> dict[int, list[int]]:
        waiting = {
            asset: [one for one in events if one > cursor(self, store, dag.dag_id, asset)]
            for asset, events in store.waiting(dag).items()
        }
        return {asset: left for asset, left in waiting.items() if left}

    yield PlanningWrites._remaining_events, remaining_events


@mutation(rules="T2", seed=51, quick=True)
def catch_up_skips_one() -> Replacements:
    """A timetable catches up two intervals at a time."""

    def timed(dag: DagSnapshot, upcoming: _Upcoming, room: int) -> Iterable[NewRun]:
        for _ in range(room):
            if not upcoming.is_due:
                return
            yield decide._scheduled(dag, upcoming)
            upcoming.advance()
            if upcoming.is_due:
                upcoming.advance()

    yield decide._timed, timed


@mutation(rules="L1", seed=4, quick=True)
def events_at_the_cap_wait_for_ever() -> Replacements:
    """The end of a run wakes no scheduler, so events that came while the DAG was at its cap wait for another event."""
    right = Scheduler._mark_ready

    def mark_ready(self: Scheduler, woken: Announced) -> None:
        right(self, {one: dag_ids for one, dag_ids in woken.items() if one != Signal.RUNS_ENDED})

    yield right, mark_ready


@mutation(rules="T1", seed=350)
def intervals_of_a_wrong_future_are_run_again() -> Replacements:
    """A timetable is asked again for intervals that ran while the clock was ahead."""

    def ask(self: _Upcoming, last: DataInterval | None) -> DagRunInfo | None:
        return self._ask_once(last)

    yield _Upcoming._ask, ask


@mutation(rules="L2", seed=8, quick=True)
def nobody_wakes_at_a_due_moment() -> Replacements:
    """No alarm is set for a timetable's next run, which waits for the sweep."""

    def set_alarms(self: Scheduler, plan: Plan) -> None:
        pass

    yield Scheduler._set_alarms, set_alarms
