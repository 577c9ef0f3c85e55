"""Checks the runs of timetables, independently of `triggerer.scheduler`.

The checker knows only the committed rows, and what the timetables answer.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, cast

from triggerer.domain.runs import RunType
from triggerer.domain.schedules import OnAssets, OnBoth, OnEither, OnTime, next_info, timetable_in
from triggerer.domain.timetables import (
    CronPartitionTimetable,
    DagRunInfo,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    Keyed,
)
from triggerer.domain.timetables import now as host_now

if TYPE_CHECKING:
    from triggerer.testing.simulation.database.model import Dag, DagState, ReadAt, Run, Store

_CLOCK_STEP = timedelta(minutes=1)
_LONGEST_CHAIN = 5_000


class TimeChecker:
    """Reports broken promises (T1 to T6) to the store's checker, and finds due DAGs that get no run (L2)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: set[str] = set()
        """DAGs whose schedule has changed."""
        self._made_ahead: set[str] = set()
        """DAGs with a run that was created too early, because the clock of a host was ahead."""
        self.is_clock_set_back = False
        """Whether the database's clock was ever set back."""

    def on_creating(self, run: Run, read_at: ReadAt | None) -> None:
        """Check T3: a run is not created before it is due by the database's clock."""
        if run.run_type is not RunType.SCHEDULED or read_at is None:
            return
        here = self._store.now()
        allowed = max(read_at.database, here)
        dag = self._store.dags[run.dag_id]
        if _answers_now(dag):
            # The timetable used the clock of the scheduler's host, which may have been set since the DAG was read.
            # Accept each time that this clock may have shown.
            asked_at = read_at.host + max(here - read_at.database, timedelta())
            allowed = max(allowed, host_now(), asked_at)
        if run.run_after > allowed:
            self._fail("T3", f"{run.run_id} of {run.dag_id} is made at {allowed}, before it is due")

    def on_run(self, dag: Dag, state: DagState, run: Run) -> None:
        if state.is_paused or state.is_stale:
            self._fail("T4", f"{dag.dag_id} is paused or stale, but got a run")
        gap, last = dag.min_run_gap_s, state.last_run_at
        if gap is not None and last is not None and not self.is_clock_set_back:
            # The scheduler checked the gap when it read the DAG, and creates the run later. So the gap must be over at
            # `made_at`.
            passed = (run.made_at - last).total_seconds()
            if passed < gap:
                self._fail("T4", f"{dag.dag_id} got two runs within {passed} s, the gap is {gap} s")
        key = None if run.interval is None else _key_of(dag, run.interval)
        if dag.keyed is None and run.partition_key != key:
            keys = f"the key {run.partition_key}, and not {key}"
            self._fail("T6", f"{dag.dag_id} is run for {run.interval} with {keys}")
        if run.interval is None:
            return
        if run.run_after > run.made_at + _CLOCK_STEP:
            self._made_ahead.add(dag.dag_id)
        others = [one for one in self._runs(dag.dag_id) if one.interval is not None]
        if any(one.interval == run.interval for one in others):
            self._fail("T1", f"{dag.dag_id} got a second run for {run.interval}")
        was_ahead = self.is_clock_set_back or dag.dag_id in self._made_ahead
        if dag.catchup and not (was_ahead and dag.dag_id in self._changed):
            self._check_chain(dag, run, others)

    def _check_chain(self, dag: Dag, run: Run, others: list[Run]) -> None:
        """Check T2: with catch-up, each run is the one that the timetable plans after the previous run."""
        if isinstance(dag.on, OnBoth):
            before = max(others, key=lambda one: one.pk, default=None)
            if self.is_clock_set_back:
                return
        else:
            earlier = [one for one in others if one.run_after < run.run_after]
            before = max(earlier, key=lambda one: one.run_after, default=None)
        info = self._following(dag, before)
        if info is None or info.data_interval != run.interval:
            self._fail("T2", f"{dag.dag_id} is run for {run.interval}, but {info} should be next")

    def on_changed(self, dag: Dag, state: DagState) -> None:
        before = self._store.dags[dag.dag_id]
        if (before.on, before.restriction) != (dag.on, dag.restriction):
            self._changed.add(dag.dag_id)

    def on_next_run(self, dag_id: str, info: DagRunInfo | None, decided_at: datetime) -> None:
        """Check T5: no due run is forgotten.

        The scheduler must create a due run, or a later run, before it plans a run that is not due yet.
        """
        due = self._store.states[dag_id].next_run
        if due is None or due.run_after > decided_at:
            return
        if info is not None and info.run_after <= decided_at:
            return
        dag = self._store.dags[dag_id]
        if isinstance(dag.on, OnBoth) or _answers_now(dag):
            return
        # A later run is enough: of several missed runs, the timetable may plan only the last.
        if not any(
            run.interval is not None and run.run_after >= due.run_after
            for run in self._runs(dag_id)
        ):
            self._fail("T5", f"{dag_id} was due for {due}, got no run, and waits for {info}")

    def record_clock(self, by: timedelta) -> None:
        """Record that the database's clock is set."""
        self.is_clock_set_back |= by < timedelta()

    def on_committed(self) -> None:
        """Check nothing. `PartitionChecker` overrides this method."""

    def find_due(self) -> dict[tuple[str, int], str]:
        """Return descriptions of due runs that do not exist, by DAG and the DAG's number of runs."""
        found: dict[tuple[str, int], str] = {}
        for dag_id, dag in self._store.dags.items():
            state, active = self._store.states[dag_id], self._store.active_runs(dag_id)
            if state.is_paused or state.is_stale or active >= dag.max_active_runs:
                continue
            if dag.depends_on_past and active:
                continue
            if (what := self._find_due_of(dag, state)) is not None:
                found[dag_id, len(self._runs(dag_id))] = f"{dag_id} is due for {what}"
        return found

    def _find_due_of(self, dag: Dag, state: DagState) -> str | None:
        waiting = self._store.waiting(dag)
        has_events = dag.condition is not None and self._store.is_due(dag, waiting)
        match dag.on:
            case OnBoth():
                ready = self._due_moment(dag, state) if has_events else None
                return None if ready is None else f"{ready} and {waiting}"
            case OnEither() | OnAssets() if has_events and self._is_in_season(dag):
                return str(waiting)
            case OnEither() | OnTime():
                ready = self._due_moment(dag, state)
                return None if ready is None else str(ready)
        return None

    def _is_in_season(self, dag: Dag) -> bool:
        here = self._store.now()
        return (dag.start_date is None or dag.start_date <= here) and (
            dag.end_date is None or here <= dag.end_date
        )

    def _due_moment(self, dag: Dag, state: DagState) -> DagRunInfo | None:
        """Return a run that is due but does not exist; None if there is no such run.

        Either the timetable plans the run now, or it planned the run when the scheduler last called it.
        """
        here = self._store.now()
        runs = [run for run in self._runs(dag.dag_id) if run.interval is not None]
        past = [run for run in runs if _moment_of(dag, run) <= here + _CLOCK_STEP]
        last = max(reversed(past), key=lambda run: run.run_after, default=None)
        asked = [self._following(dag, last)]
        if not isinstance(dag.on, OnBoth):
            if dag.dag_id in self._made_ahead & self._changed:
                # A host whose clock was ahead has created a run too early. As soon as that run is due, it is `last`
                # here. But the scheduler does not call the timetable again at that time. So use only `next_run`, which
                # the scheduler stored at its last call.
                asked.clear()
            asked.append(state.next_run)
        if isinstance(dag.on, OnBoth):
            # If the clock was set back, the interval after `last` may have a run already. So take the first interval
            # without a run.
            asked = [self._first_without_run(dag, info, runs) for info in asked]
        for info in asked:
            if info is not None and info.run_after <= here:
                made = {run.run_after for run in runs}
                if isinstance(dag.on, OnBoth) or (
                    info.run_after not in made and (last is None or info.run_after > last.run_after)
                ):
                    return info
        return None

    def _first_without_run(
        self, dag: Dag, info: DagRunInfo | None, runs: list[Run]
    ) -> DagRunInfo | None:
        """Return the timetable's first run, from `info` on, whose interval has no run in the store."""
        made = {run.interval for run in runs}
        while info is not None and info.data_interval in made:
            info = next_info(dag.on, info.data_interval, dag.restriction)
        return info

    def _following(self, dag: Dag, last: Run | None) -> DagRunInfo | None:
        """Return the timetable's first run that is later than `last`."""
        interval = None if last is None else last.interval
        for _ in range(_LONGEST_CHAIN):
            info = next_info(dag.on, interval, dag.restriction)
            if info is None or last is None or isinstance(dag.on, OnBoth):
                return info
            if info.run_after > last.run_after:
                return info
            interval = info.data_interval
        return None

    def _runs(self, dag_id: str) -> list[Run]:
        return [run for run in self._store.runs.values() if run.dag_id == dag_id]

    def _fail(self, rule: str, detail: str) -> None:
        self._store.checker.fail(rule, detail)


def _moment_of(dag: Dag, run: Run) -> datetime:
    """Return the time for which the timetable planned a run.

    For a schedule on assets and time, this is the end of the run's interval, because `run_after` is the later time at
    which the run was created. If the clock was set back before the creation, `run_after` is earlier than that end, and
    is returned.
    """
    if isinstance(dag.on, OnBoth) and run.interval is not None:
        return min(run.run_after, run.interval.end)
    return run.run_after


def _answers_now(dag: Dag) -> bool:
    """Return whether the DAG's timetable can plan a run for the current time of the scheduler's host."""
    timetable = timetable_in(dag.on)
    if isinstance(timetable, Keyed):
        timetable = timetable.timetable
    return not dag.catchup and isinstance(
        timetable, DeltaTriggerTimetable | DeltaDataIntervalTimetable
    )


def _key_of(dag: Dag, interval: DataInterval) -> str | None:
    """Return the partition key of an interval: its start, in the timetable's zone and format.

    The result is None if the timetable has no keys.
    """
    match timetable_in(dag.on):
        case CronPartitionTimetable() | Keyed() as keyed:
            start = interval.start.astimezone(cast("tzinfo", keyed.timezone))
            return start.strftime(keyed.key_format)
    return None
