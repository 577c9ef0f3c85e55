"""Finds out which runs a DAG would have had, by deciding again about the recorded events. `triggerer plan` uses it.

In a replay every run succeeds at once, and nothing is paused. Timetables are evaluated as if the scheduler had never
stopped. So if the replays of an old and a new definition differ, only the definitions are the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.partitions.dividing import KeyedEvent
from triggerer.domain.runs import RunType
from triggerer.domain.schedules import (
    OnBoth,
    OnPartitions,
    OnTime,
    Schedule,
    condition_of,
    next_info,
)
from triggerer.domain.timetables import DataInterval, TimeRestriction
from triggerer.domain.timetables.ticks import HasTicks
from triggerer.scheduler.cached_timetables import with_cached_answers
from triggerer.scheduler.decide import look
from triggerer.scheduler.dividing import partitioner_of
from triggerer.scheduler.keys_in_memory import KeysInMemory
from triggerer.scheduler.looks import DagSnapshot, NewRun, PartitionQueue, WaitingAsset

MOST_RUNS: Final = 10_000
"""The most runs of one DAG. A replay ends when it has found this number."""
_BOUND: Final = 2**31


@dataclass(frozen=True, slots=True)
class Definition:
    """The attributes of a DAG on which its runs depend."""

    dag_id: str
    schedule: Schedule | None
    events_per_run: int | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    catchup: bool = False
    min_run_gap: timedelta | None = None
    quiet_period: timedelta | None = None
    max_active_runs: int = 16
    depends_on_past: bool = False


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An asset event from the history."""

    id: int
    asset: Asset
    timestamp: datetime
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """The moment at which the database's clock was set back.

    Events that were recorded before this moment may have later timestamps. Correct these timestamps before you call
    `replay`.
    """

    after_id: int
    """The id of the last event before the clock was set back."""
    at: datetime
    """When the clock was set back, as the corrected clock shows it."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A run that the scheduler would have created."""

    run_type: str
    at: datetime
    """When the scheduler would have created it."""
    logical_date: datetime | None
    asset_event_ids: tuple[int, ...]
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The runs of a DAG, oldest first, and the ids of the events that still wait at the end."""

    runs: tuple[ReplayedRun, ...]
    waiting: tuple[int, ...]
    is_cut_short: bool = False
    """True if the replay ended early, because it had found `MOST_RUNS` runs."""


def assets_waited_for(
    schedule: Schedule | None, members: Mapping[str, frozenset[Asset]]
) -> frozenset[Asset]:
    """Return the assets that a schedule names, directly or through an alias."""
    condition = condition_of(schedule)
    if condition is None:
        return frozenset()
    named = (members.get(alias.name, frozenset()) for alias in aliases_of(condition))
    return frozenset(assets_of(condition)).union(*named)


def replay(
    definition: Definition,
    events: Iterable[RecordedEvent],
    *,
    members: Mapping[str, frozenset[Asset]],
    since: datetime,
    until: datetime,
    set_back: ClockSetBack | None = None,
) -> Replayed:
    """Return the runs that a scheduler would have created between two instants.

    Args:
        events: The events between `since` and `until`, in the order of recording.
        members: The assets that each alias resolves to. Their events count for the alias.
        set_back: When the clock was set back; None: never. At that moment, a current `min_run_gap` or `quiet_period`
            ends, and the deadlines of partition keys restart.
    Raises:
        Exception: A timetable from a plugin failed.
    """
    if definition.schedule is None:
        return Replayed((), ())
    if isinstance(definition.schedule, OnPartitions):
        partitioner = partitioner_of(definition.schedule)
        keys = KeysInMemory(partitioner, definition.quiet_period, members)
        return _KeyedReplay(definition, members, since, set_back, keys=keys).run(events, until)
    if _is_due_by_instants_alone(definition):
        return _TimedReplay(definition, members, since).run((), until)
    definition = replace(definition, schedule=with_cached_answers(definition.schedule))
    return _Replay(definition, members, since, set_back).run(events, until)


def _is_due_by_instants_alone(definition: Definition) -> bool:
    """True if only a timetable decides when runs are due, and it lists fixed instants (`HasTicks`), as cron does."""
    schedule = definition.schedule
    is_timed = isinstance(schedule, OnTime) and isinstance(schedule.timetable, HasTicks)
    return is_timed and definition.min_run_gap is None


@dataclass(slots=True)
class _Replay:
    definition: Definition
    members: Mapping[str, frozenset[Asset]]
    since: datetime
    set_back: ClockSetBack | None = None
    """None: the clock was not set back, or the replay has passed that moment."""
    before_id: int = 0
    """Events up to this id are from before the clock was set back."""
    queue: dict[Asset, list[RecordedEvent]] = field(default_factory=dict)
    runs: list[ReplayedRun] = field(default_factory=list)
    last_interval: DataInterval | None = None
    last_run_after: datetime | None = None
    last_run_at: datetime | None = None
    last_kind: RunType | None = None

    def run(self, events: Iterable[RecordedEvent], until: datetime) -> Replayed:
        waits_for = assets_waited_for(self.definition.schedule, self.members)
        now = self.since
        wake = self._advance(now)
        for some in self._by_look(event for event in events if event.asset in waits_for):
            if self.set_back is not None and some[0].id > self.set_back.after_id:
                now, wake = self._set_clock_back(self.set_back, now, wake)
            # An event may carry an earlier instant than the event before it.
            now = max(now, some[0].timestamp)
            wake = self._pass_time(wake, now)
            self._queue(some, now)
            wake = self._advance(now)
        if self.set_back is not None:
            now, wake = self._set_clock_back(self.set_back, now, wake)
        self._pass_time(wake, until)
        return Replayed(tuple(self.runs), self._left(), len(self.runs) >= MOST_RUNS)

    def _set_clock_back(
        self, back: ClockSetBack, now: datetime, wake: datetime | None
    ) -> tuple[datetime, datetime | None]:
        """Set the clock back; return the present time of the replay, and when to look next."""
        now = max(now, back.at)
        self._pass_time(wake, now)
        self.set_back, self.before_id, self.last_run_at = None, back.after_id, None
        self._restart_deadlines(now)
        return now, self._advance(now)

    def _restart_deadlines(self, now: datetime) -> None:
        """Restart the deadlines of partition keys at `now`, after the clock was set back. Does nothing without keys."""

    def _by_look(self, events: Iterable[RecordedEvent]) -> Iterator[list[RecordedEvent]]:
        """Yield groups of events that a scheduler sees in one look: here, each event alone."""
        for event in events:
            yield [event]

    def _queue(self, events: Sequence[RecordedEvent], now: datetime) -> None:
        for event in events:
            self.queue.setdefault(event.asset, []).append(event)

    def _left(self) -> tuple[int, ...]:
        return tuple(sorted(event.id for waiting in self.queue.values() for event in waiting))

    def _pass_time(self, wake: datetime | None, until: datetime) -> datetime | None:
        while wake is not None and wake <= until:
            wake = self._advance(wake)
        return wake

    def _advance(self, now: datetime) -> datetime | None:
        """Create the runs that are due, and return when to look again if no event comes."""
        while len(self.runs) < MOST_RUNS:
            found = look(self._snapshot(now), at_most=1, bound=_BOUND)
            if not found.runs:
                return found.wake_at(now)
            self._make(found.runs[0], now)
        return None

    def _snapshot(self, now: datetime) -> DagSnapshot:
        one = self.definition
        newest = [
            waiting[-1].timestamp
            for waiting in self.queue.values()
            if waiting[-1].id > self.before_id
        ]
        return DagSnapshot(
            dag_id=one.dag_id,
            schedule=one.schedule,
            now=now,
            events_per_run=one.events_per_run,
            waiting=tuple(
                WaitingAsset(number, asset.name, asset.uri, len(waiting), self._aliases(asset))
                for number, (asset, waiting) in enumerate(self.queue.items())
            ),
            # `CachedTimetable` needs `catchup=True`. Catching up creates no extra run here: a replay misses no run.
            restriction=TimeRestriction(self._earliest(), one.end_date, catchup=True),
            # Each run ends at once.
            max_active_runs=MOST_RUNS,
            last_interval=self.last_interval,
            last_run_after=self.last_run_after,
            last_run_at=self.last_run_at,
            last_kind=self.last_kind,
            min_run_gap=one.min_run_gap,
            quiet_period=one.quiet_period,
            newest_event=max(newest, default=None),
            partitions=self._partitions(now),
        )

    def _partitions(self, now: datetime) -> PartitionQueue:
        return PartitionQueue()

    def _earliest(self) -> datetime:
        start = self.definition.start_date
        return self.since if start is None else max(start, self.since)

    def _make(self, run: NewRun, now: datetime) -> None:
        taken: list[int] = []
        if run.run_type is not RunType.SCHEDULED:
            for asset, waiting in list(self.queue.items()):
                count = len(waiting) if run.events_per_run is None else run.events_per_run
                taken += [event.id for event in waiting[:count]]
                del waiting[:count]
                if not waiting:
                    del self.queue[asset]
        self.last_run_at, self.last_kind = now, run.run_type
        if run.info is not None:
            self.last_interval = run.info.data_interval
            self.last_run_after = max(run.info.run_after, self.last_run_after or run.info.run_after)
            if isinstance(self.definition.schedule, OnBoth) and not self.definition.catchup:
                self._pass_over_missed(now)
        logical_date = None if run.info is None else run.info.logical_date
        self.runs.append(
            ReplayedRun(
                run.run_type.value, now, logical_date, tuple(sorted(taken)), run.partition_key
            )
        )

    def _pass_over_missed(self, now: datetime) -> None:
        """Skip all intervals that are due already. Without catch-up, the scheduler creates no runs for them."""
        restriction = TimeRestriction(self._earliest(), self.definition.end_date, catchup=True)
        for _ in range(MOST_RUNS):
            info = next_info(self.definition.schedule, self.last_interval, restriction)
            if info is None or info.run_after > now or info.data_interval == self.last_interval:
                return
            self.last_interval = info.data_interval

    def _aliases(self, asset: Asset) -> frozenset[str]:
        condition = condition_of(self.definition.schedule)
        names: Sequence[str] = (
            () if condition is None else [alias.name for alias in aliases_of(condition)]
        )
        return frozenset(name for name in names if asset in self.members.get(name, ()))


@dataclass(slots=True)
class _TimedReplay(_Replay):
    """Replays a DAG whose runs depend only on its timetable. For speed, one look finds all runs up to the end."""

    def _pass_time(self, wake: datetime | None, until: datetime) -> datetime | None:
        while wake is not None and len(self.runs) < MOST_RUNS:
            found = look(self._snapshot(until), at_most=MOST_RUNS - len(self.runs), bound=_BOUND)
            for run in found.runs:
                assert run.info is not None
                self._make(run, max(wake, run.info.run_after))
            if not found.runs:
                break
        return None


@dataclass(slots=True, kw_only=True)
class _KeyedReplay(_Replay):
    keys: KeysInMemory

    def _by_look(self, events: Iterable[RecordedEvent]) -> Iterator[list[RecordedEvent]]:
        """Yield the events of one instant together, because one transaction usually recorded them."""
        for _, some in groupby(events, key=lambda event: event.timestamp):
            yield list(some)

    def _queue(self, events: Sequence[RecordedEvent], now: datetime) -> None:
        self.keys.add([keyed(one) for one in events], now)

    def _restart_deadlines(self, now: datetime) -> None:
        self.keys.restart_deadlines(now)

    def _left(self) -> tuple[int, ...]:
        return self.keys.waiting()

    def _partitions(self, now: datetime) -> PartitionQueue:
        return self.keys.queue(now)

    def _make(self, run: NewRun, now: datetime) -> None:
        assert run.partition_key is not None
        taken = self.keys.take(run.partition_key)
        self.last_run_at = now
        self.runs.append(ReplayedRun(run.run_type.value, now, None, taken, run.partition_key))


def keyed(event: RecordedEvent) -> KeyedEvent:
    """Return the event in the form that a partitioner divides."""
    asset = event.asset
    return KeyedEvent(event.id, 0, asset.name, asset.uri, event.partition_key, event.timestamp)
