"""Decides from a DAG's snapshot which runs to create, and why no further run is created.

- A snapshot is what the database knew about a DAG at one instant. The decision takes this instant
  for the present.
- A look is the decision about one snapshot. `triggerer why-not` shows a look.

This module uses no database, and reads the host's clock only to evaluate timetables. The code that creates the runs
makes no decisions. That code only ensures, by a lock or by the row's version, that the DAG has not changed since the
snapshot.

Exception: `dividing.py` decides when the run of a partition key is due, as soon as events of the key arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from triggerer.domain.assets import AssetAlias
from triggerer.domain.conditions import Condition, Leaf, is_satisfied, leaves_of
from triggerer.domain.runs import RunState, RunType
from triggerer.domain.schedules import (
    OnBoth,
    OnEither,
    OnPartitions,
    OnTime,
    condition_of,
    next_info,
    partition_key_of,
    timetable_in,
)
from triggerer.domain.timetables import DagRunInfo, DataInterval, now
from triggerer.scheduler.holds import Hold
from triggerer.scheduler.looks import DagSnapshot, Look, NewRun, WaitingAsset

_MOST_SKIPPED: Final = 10_000
"""The most runs of a timetable that one look skips. A higher number would delay the other DAGs."""


def look(dag: DagSnapshot, *, at_most: int, bound: int) -> Look:
    """Return the runs to create now, and the reasons why no further run is created.

    Args:
        at_most: The most runs to return.
        bound: The most queued events of an asset that the snapshot counts.
    Raises:
        Exception: A timetable from a plugin failed.
    """
    if dag.schedule is None:
        return Look(dag.dag_id, holds=(*_blocking_holds(dag, _room(dag)), Hold.by_hand()))
    if isinstance(dag.schedule, OnPartitions):
        return _look_at_partitions(dag, at_most)
    free = _room(dag)
    blocking = _blocking_holds(dag, free)
    room = 0 if blocking else min(at_most, _room_for_one(dag, free))
    upcoming = _Upcoming(dag)
    runs: list[NewRun] = []
    queue = _Queue(dag)
    match dag.schedule:
        case OnTime():
            runs += _timed(dag, upcoming, room)
        case OnEither():
            runs += _either(dag, upcoming, queue, room)
        case OnBoth():
            runs += _joint(dag, upcoming, queue, room)
        case _:
            runs += _triggered(dag, queue, room)
    if runs and not blocking:
        blocking = _after_runs(dag, len(runs), free)
    # If counting stopped at the bound, more events may be queued, and more runs may be due than this look found.
    counted_short = dag.events_per_run is not None and any(
        asset.queued >= bound for asset in dag.waiting
    )
    is_cut_short = bool(runs) and not blocking and (len(runs) == room or counted_short)
    holds = (*blocking, *_missing(dag, upcoming, queue))
    return Look(dag.dag_id, tuple(runs), holds, upcoming.info, is_cut_short)


def _look_at_partitions(dag: DagSnapshot, at_most: int) -> Look:
    queue = dag.partitions
    free = _room(dag)
    blocking = _blocking_holds(dag, free)
    if queue.is_behind:
        # Some events are not divided among the keys yet. A run that started now would miss them.
        return Look(dag.dag_id, holds=blocking, is_cut_short=not (dag.is_paused or dag.is_stale))
    outside = _outside_dates(dag)
    room = 0 if blocking or outside else min(at_most, _room_for_one(dag, free))
    runs = tuple(
        NewRun(dag.dag_id, RunType.ASSET_TRIGGERED, partition_key=key) for key in queue.due[:room]
    )
    if runs:
        blocking = _after_runs(dag, len(runs), free)
    is_left = len(queue.due) > len(runs)
    missing: tuple[Hold, ...] = () if outside is None else (outside,)
    if not is_left:
        missing += (Hold.partitions(queue.next_at),)
    is_cut_short = is_left and bool(runs) and not blocking
    return Look(dag.dag_id, runs, (*blocking, *missing), is_cut_short=is_cut_short)


def _room_for_one(dag: DagSnapshot, room: int) -> int:
    """Return how many runs may be created now: `room`, but at most 1 if each run delays the next one.

    A run delays the next one if the DAG has `min_run_gap` or `depends_on_past`.
    """
    return min(room, 1) if dag.min_run_gap is not None or dag.depends_on_past else room


def _blocking_holds(dag: DagSnapshot, room: int) -> tuple[Hold, ...]:
    """Return what keeps the DAG from starting any run, even if a run is due.

    Args:
        room: How many further runs may be active.
    """
    holds: list[Hold] = []
    if dag.is_stale:
        holds.append(Hold.stale())
    if dag.is_paused:
        holds.append(Hold.paused())
    if room <= 0:
        holds.append(Hold.cap(dag.active_runs, _cap(dag)))
    gap, last = dag.min_run_gap, dag.last_run_at
    # If the last run was created later than `now`, the clock was set back. Then the gap cannot be
    # measured, and does not delay the next run.
    if gap is not None and last is not None and last <= dag.now < last + gap:
        holds.append(Hold.gap(last, gap))
    past = dag.last_run
    if dag.depends_on_past and past is not None and past.state != RunState.SUCCESS.value:
        holds.append(Hold.past(past.run_id, past.state))
    return tuple(holds)


def _after_runs(dag: DagSnapshot, created: int, room: int) -> tuple[Hold, ...]:
    """Return what delays the next run once `created` new runs exist."""
    holds: list[Hold] = []
    if room <= created:
        holds.append(Hold.cap(dag.active_runs + created, _cap(dag)))
    if dag.min_run_gap is not None:
        holds.append(Hold.gap(dag.now, dag.min_run_gap))
    if dag.depends_on_past:
        holds.append(Hold.past(None, RunState.QUEUED.value))
    return tuple(holds)


def _cap(dag: DagSnapshot) -> int:
    timetable = timetable_in(dag.schedule)
    limit = None if timetable is None else timetable.active_runs_limit
    return dag.max_active_runs if limit is None else min(dag.max_active_runs, limit)


def _room(dag: DagSnapshot) -> int:
    return _cap(dag) - dag.active_runs


class _Upcoming:
    """The runs that a DAG's timetable asks for, one after the other.

    Each look asks the timetable for the next run, and the database stores the answer. Some
    timetables never return a run in the past. Without the stored answer, a run that became due
    while no scheduler was running would be lost. So if the new answer is not due, but the stored
    run is, the stored run counts.
    """

    def __init__(self, dag: DagSnapshot) -> None:
        self._dag = dag
        self._is_now = False
        self.info: DagRunInfo | None = None
        self.is_asked = timetable_in(dag.schedule) is not None
        """True if the DAG has a timetable."""
        if not self.is_asked:
            return
        self.info = self._ask(dag.last_interval)
        stored, last = dag.stored_info, dag.last_run_after
        if not isinstance(dag.schedule, OnBoth) and last is not None:
            # After a change of the schedule, the timetable may name a run that is not later than the DAG's last run.
            # Skip to the first later run.
            for _ in range(_MOST_SKIPPED):
                if self.info is None or self.info.run_after > last:
                    break
                self.advance()
            if stored is not None and stored.run_after <= last:
                stored = None
        if stored is not None and stored.data_interval in dag.covered_intervals:
            stored = None
        if not self.is_due and stored is not None and stored.run_after <= dag.now:
            self.info = stored

    @property
    def is_due(self) -> bool:
        return self.info is not None and (self._is_now or self.info.run_after <= self._dag.now)

    def advance(self) -> None:
        assert self.info is not None
        before = self.info
        self.info = self._ask(before.data_interval)
        if self.info == before:
            # A timetable that repeats its answer would repeat it for ever. Treat the repetition as the end of its runs.
            self.info = None

    def _ask(self, last: DataInterval | None) -> DagRunInfo | None:
        """Ask for the run after `last`, and skip runs that exist already."""
        info = self._ask_once(last)
        for _ in self._dag.covered_intervals:
            if info is None or info.data_interval not in self._dag.covered_intervals:
                break
            before, info = info, self._ask_once(info.data_interval)
            if info == before:
                return None
        return info

    def _ask_once(self, last: DataInterval | None) -> DagRunInfo | None:
        asked_at = now()
        info = next_info(self._dag.schedule, last, self._dag.restriction)
        # A timetable may answer with the host's present time. Such a run is due now, even if the host's clock is ahead
        # of the database's clock.
        self._is_now = info is not None and asked_at <= info.run_after <= now()
        return info

    def pass_over_missed(self) -> None:
        """Without catch-up, skip to the last run that is due. With catch-up, do nothing."""
        for _ in range(0 if self._dag.restriction.catchup else _MOST_SKIPPED):
            before = self.info
            assert before is not None
            self.advance()
            if not self.is_due:
                self.info, self._is_now = before, True
                return


class _Queue:
    """Counts each asset's queued events, without the events that earlier runs of this look take."""

    def __init__(self, dag: DagSnapshot) -> None:
        self._each = dag.events_per_run
        self.queued = {asset: asset.queued for asset in dag.waiting}

    def satisfies(self, condition: Condition | None) -> bool:
        # No run is due without an event, even if the expression is true.
        if condition is None or not self.queued:
            return False
        return is_satisfied(condition, partial(_has, self.queued))

    def take(self) -> None:
        each = self._each
        self.queued = (
            {}
            if each is None
            else {asset: number - each for asset, number in self.queued.items() if number > each}
        )


def _timed(dag: DagSnapshot, upcoming: _Upcoming, room: int) -> Iterator[NewRun]:
    for _ in range(room):
        if not upcoming.is_due:
            return
        yield _scheduled(dag, upcoming)
        upcoming.advance()


def _triggered(dag: DagSnapshot, queue: _Queue, room: int) -> Iterator[NewRun]:
    condition = condition_of(dag.schedule)
    if _quiet(dag) or _outside_dates(dag):
        return
    for _ in range(room):
        if not queue.satisfies(condition):
            return
        yield _event_driven(dag)
        queue.take()


def _either(dag: DagSnapshot, upcoming: _Upcoming, queue: _Queue, room: int) -> Iterator[NewRun]:
    """Yield timed and event-driven runs. While both kinds are due, they alternate.

    Without alternation, a kind that is always due would use up `max_active_runs`, and the other kind would get no runs.
    """
    can_take = not (_quiet(dag) or _outside_dates(dag))
    is_turn_of_assets = dag.last_kind is RunType.SCHEDULED
    for _ in range(room):
        has_events = can_take and queue.satisfies(condition_of(dag.schedule))
        if has_events and (is_turn_of_assets or not upcoming.is_due):
            yield _event_driven(dag)
            queue.take()
            is_turn_of_assets = False
        elif upcoming.is_due:
            yield _scheduled(dag, upcoming)
            upcoming.advance()
            is_turn_of_assets = True
        else:
            return


def _joint(dag: DagSnapshot, upcoming: _Upcoming, queue: _Queue, room: int) -> Iterator[NewRun]:
    condition = condition_of(dag.schedule)
    if _quiet(dag):
        return
    for _ in range(room):
        if not (upcoming.is_due and queue.satisfies(condition)):
            return
        upcoming.pass_over_missed()
        timed = _scheduled(dag, upcoming)
        yield replace(_event_driven(dag), info=timed.info, partition_key=timed.partition_key)
        upcoming.advance()
        queue.take()


def _scheduled(dag: DagSnapshot, upcoming: _Upcoming) -> NewRun:
    info = upcoming.info
    assert info is not None
    key = partition_key_of(dag.schedule, info.data_interval)
    return NewRun(dag.dag_id, RunType.SCHEDULED, info=info, partition_key=key)


def _event_driven(dag: DagSnapshot) -> NewRun:
    assets = tuple(asset.asset_id for asset in dag.waiting)
    return NewRun(dag.dag_id, RunType.ASSET_TRIGGERED, assets, dag.events_per_run)


def _quiet(dag: DagSnapshot) -> Hold | None:
    period, newest = dag.quiet_period, dag.newest_event
    if period is None or newest is None or dag.now >= newest + period:
        return None
    return Hold.quiet(newest, period)


def _outside_dates(dag: DagSnapshot) -> Hold | None:
    earliest, latest, _ = dag.restriction
    if earliest is not None and dag.now < earliest:
        return Hold.not_begun(earliest)
    return Hold.ended(latest) if latest is not None and dag.now > latest else None


def _missing(dag: DagSnapshot, upcoming: _Upcoming, queue: _Queue) -> Iterator[Hold]:
    """Yield what the next run still waits for."""
    condition = condition_of(dag.schedule)
    if upcoming.is_asked and not upcoming.is_due:
        yield _no_time(dag) if upcoming.info is None else Hold.time(upcoming.info.run_after)
    if condition is None:
        return
    if not isinstance(dag.schedule, OnBoth) and (outside := _outside_dates(dag)):
        yield outside
    if not queue.satisfies(condition):
        yield Hold.assets(tuple(dict.fromkeys(_lacking(condition, queue))))
    elif quiet := _quiet(dag):
        yield quiet


def _no_time(dag: DagSnapshot) -> Hold:
    earliest, latest, catchup = dag.restriction
    is_over = latest is not None and dag.now > latest
    if catchup and earliest is None and dag.last_interval is None and not is_over:
        return Hold.no_start()
    return Hold.no_time()


def _lacking(condition: Condition, queue: _Queue) -> Iterator[str]:
    for leaf in leaves_of(condition):
        if not _has(queue.queued, leaf):
            yield leaf.name


def _has(queued: dict[WaitingAsset, int], leaf: Leaf) -> bool:
    if isinstance(leaf, AssetAlias):
        return any(leaf.name in asset.aliases for asset in queued)
    return any(asset.name == leaf.name and asset.uri == leaf.uri for asset in queued)


def allot(looks: Sequence[Look], *, limit: int) -> list[Look]:
    """Return the looks, cut to `limit` runs in total. The DAGs get one run each in turn, until the limit is reached."""
    if sum(len(found.runs) for found in looks) <= limit:
        return list(looks)
    counts = [0] * len(looks)
    left = limit
    while left > 0:
        served = [n for n, found in enumerate(looks) if counts[n] < len(found.runs)][:left]
        if not served:
            break
        for n in served:
            counts[n] += 1
        left -= len(served)
    return [found.first(count) for found, count in zip(looks, counts, strict=True)]


def upcoming(dag: DagSnapshot, count: int) -> list[DagRunInfo]:
    """Return up to `count` of the next runs that the DAG's timetable asks for. Runs that are due come first.

    Raises:
        Exception: A timetable from a plugin failed.
    """
    found: list[DagRunInfo] = []
    if timetable_in(dag.schedule) is None:
        return found
    runs = _Upcoming(dag)
    while runs.info is not None and len(found) < count:
        found.append(runs.info)
        runs.advance()
    return found
