"""Computes the runs that must exist, by a simple model that shares no code with the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

HOUR = timedelta(hours=1)

Needs = str | tuple[str, "Needs", "Needs"]
"""An expression: the name of an asset, or `&` or `|` of two expressions."""


def names_in(needs: Needs) -> frozenset[str]:
    if isinstance(needs, str):
        return frozenset({needs})
    return names_in(needs[1]) | names_in(needs[2])


def is_true(needs: Needs, waiting: set[str]) -> bool:
    if isinstance(needs, str):
        return needs in waiting
    kind, one, other = needs
    parts = is_true(one, waiting), is_true(other, waiting)
    return all(parts) if kind == "&" else any(parts)


@dataclass(frozen=True)
class DagSpec:
    """A DAG. Its timetable, if any, has hourly data intervals."""

    kind: str
    """The kind of the schedule: `assets`, `time`, `either` or `both`."""
    needs: Needs = "a"
    catchup: bool = False
    events_per_run: int | None = None
    max_active_runs: int = 16
    gap: timedelta | None = None
    quiet: timedelta | None = None
    depends_on_past: bool = False


@dataclass
class ModelRun:
    logical_date: datetime | None
    run_after: datetime
    events: frozenset[int]
    state: str = "queued"
    is_deleted: bool = False
    """Whether cleaning deleted the run. Decisions about later runs do not depend on that."""


@dataclass
class ModelDag:
    spec: DagSpec
    start: datetime
    is_paused: bool = False
    runs: list[ModelRun] = field(default_factory=list)
    waiting: dict[str, list[int]] = field(default_factory=dict)
    times: dict[int, datetime] = field(default_factory=dict)
    made_at: datetime | None = None

    def emit(self, asset: str, event: int, now: datetime) -> None:
        if self.spec.kind != "time" and asset in names_in(self.spec.needs):
            self.waiting.setdefault(asset, []).append(event)
            self.times[event] = now

    def move(self, by: timedelta) -> None:
        """Add `by` to all recorded instants. For the DAG, this is as if the clock had been set back by `by`."""
        self.start += by
        self.made_at = None if self.made_at is None else self.made_at + by
        self.times = {event: at + by for event, at in self.times.items()}
        for run in self.runs:
            run.run_after += by
            run.logical_date = None if run.logical_date is None else run.logical_date + by

    def settle(self, now: datetime) -> None:
        """Create all runs that may be created at this instant."""
        while self._may_run(now) and self._make_one(now):
            pass

    def _may_run(self, now: datetime) -> bool:
        spec, active = self.spec, [run for run in self.runs if run.state == "queued"]
        if self.is_paused or len(active) >= spec.max_active_runs:
            return False
        last = self.made_at
        if spec.gap is not None and last is not None and last <= now < last + spec.gap:
            return False
        return not spec.depends_on_past or not self.runs or self.runs[-1].state == "success"

    def _make_one(self, now: datetime) -> bool:
        spec, tick = self.spec, self._tick(now)
        has_events = is_true(spec.needs, set(self.waiting)) and not self._is_loud(now)
        is_for_events = spec.kind in ("assets", "either") and has_events and now >= self.start
        is_for_time = spec.kind in ("time", "either") and tick is not None
        if is_for_events and is_for_time:
            # Runs by time and runs by events take turns. The first run is by time.
            is_for_time = not self.runs or self.runs[-1].logical_date is None
        if is_for_time and tick is not None:
            self._add(tick, tick + HOUR, frozenset(), now)
        elif is_for_events:
            self._add(None, now, self._take(), now)
        elif spec.kind == "both" and tick is not None and has_events:
            self._add(tick, now, self._take(), now)
        else:
            return False
        return True

    def _tick(self, now: datetime) -> datetime | None:
        """The start of the hour whose run is due, if one is."""
        if self.spec.kind == "assets":
            return None
        asked = [run for run in self.runs if run.logical_date is not None and run.run_after <= now]
        # If several runs have the same instant, the newest counts.
        last = max(reversed(asked), key=lambda run: run.run_after, default=None)
        following = self.start if last is None else last.logical_date + HOUR  # type: ignore[operator]
        newest = now.replace(minute=0, second=0, microsecond=0) - HOUR
        if following > newest:
            return None
        following = following if self.spec.catchup else newest
        # An interval that ran while the clock was ahead does not run again.
        made = {run.logical_date for run in self.runs}
        while self.spec.kind == "both" and following in made:
            following += HOUR
        return following if following <= newest else None

    def _is_loud(self, now: datetime) -> bool:
        quiet = self.spec.quiet
        times = [self.times[event] for some in self.waiting.values() for event in some]
        # Events in the future are from before the clock was set back.
        newest = max((at for at in times if at <= now + timedelta(minutes=1)), default=None)
        return quiet is not None and newest is not None and now < newest + quiet

    def _take(self) -> frozenset[int]:
        each = self.spec.events_per_run
        taken = [event for some in self.waiting.values() for event in some[:each]]
        left = {} if each is None else {name: some[each:] for name, some in self.waiting.items()}
        self.waiting = {name: some for name, some in left.items() if some}
        return frozenset(taken)

    def _add(
        self, date: datetime | None, after: datetime, events: frozenset[int], now: datetime
    ) -> None:
        self.runs.append(ModelRun(date, after, events))
        self.made_at = now
