"""A simple model of docs/reference/partitions.md. It computes which runs must exist, without code of the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.properties.scheduling_model import Needs, names_in
from tests.properties.three_assets import ALIASES, THREE

CLOCK_STEP = timedelta(minutes=1)
"""An instant further ahead was written before the clock was set back."""
MONTHS = {
    "2026-Q1": ("2026-01", "2026-02", "2026-03"),
    "2026-Q2": ("2026-04", "2026-05", "2026-06"),
}
HOURS = {
    day: tuple(f"{day}T{hour:02}" for hour in range(24)) for day in ("2026-03-31", "2026-04-01")
}
REGIONS = ("eu", "us", "asia")
WHOLES: dict[str, dict[str, tuple[str, ...]]] = {
    "quarter": MONTHS,
    "day": HOURS,
    "world": {"world": REGIONS},
}
"""The parts of each key, by the target of a rule."""
_ENDS = {
    "2026-Q1": datetime(2026, 4, 1, tzinfo=UTC),
    "2026-Q2": datetime(2026, 7, 1, tzinfo=UTC),
    "2026-03-31": datetime(2026, 4, 1, tzinfo=UTC),
    "2026-04-01": datetime(2026, 4, 2, tzinfo=UTC),
}


@dataclass(frozen=True)
class Rule:
    """The model of an asset's mapper.

    Args:
        to: The run's key. `same`: the event's key. `allowed`: the event's key, but one of the three regions is refused.
            `quarter`: the quarter of a month. `day`: the day of an hour. `world`: one key for all events. `months`: the
            three months of a quarter.
        least: The number of parts that a run needs. 0: all parts. -1: all parts but one, and so on. None: any event.
        patience: How long the run waits for all parts before `least` parts suffice, from the end of the period (for
            `world`, from the first event). None: the run does not wait.
    """

    to: str = "same"
    least: int | None = None
    patience: timedelta | None = None

    def keys_of(self, key: str | None) -> tuple[str, ...]:
        """The keys of the runs that an event is for; empty if it is refused."""
        if key is None:
            return ()
        match self.to:
            case "same":
                return (key,)
            case "allowed":
                return (key,) if key in REGIONS[:2] else ()
            case "months":
                return MONTHS.get(key, ())
            case "world":
                return ("world",)
        return tuple(whole for whole, parts in WHOLES[self.to].items() if key in parts)

    def ready_at(self, key: str, first: Mapping[str, datetime], now: datetime) -> datetime | None:
        """Return when the events that have arrived suffice for a run; None: the run needs further events.

        Args:
            first: Key of an event -> the instant at which the key's first event arrived.
        """
        if not first:
            return None
        if self.least is None:
            return now
        parts = WHOLES[self.to][key]
        there = len(first.keys() & set(parts))
        if there == len(parts):
            return now
        wanted = self.least if self.least > 0 else len(parts) + self.least
        if there < wanted:
            return None
        if self.patience is None:
            return now
        return max(now, _ENDS.get(key, min(first.values())) + self.patience)


@dataclass(frozen=True)
class Spec:
    """A DAG.

    Args:
        needs: An expression of `a`, `b` and `c`, and of the aliases `x` and `y`.
        rules: The rules of the assets `a`, `b` and `c`.
        default: The rule of any other asset, which an alias may resolve to.
        quiet: The quiet period. None in tests that set the clock back.
    """

    needs: Needs
    rules: tuple[Rule, Rule, Rule] = (Rule(), Rule(), Rule())
    default: Rule = Rule()
    max_active_runs: int = 16
    gap: timedelta | None = None
    quiet: timedelta | None = None
    depends_on_past: bool = False

    @property
    def assets(self) -> frozenset[str]:
        return names_in(self.needs) - set(ALIASES)

    @property
    def aliases(self) -> frozenset[str]:
        return names_in(self.needs) & set(ALIASES)

    def rule_of(self, asset: str) -> Rule:
        return self.rules[THREE.index(asset)] if asset in self.assets else self.default


@dataclass(frozen=True)
class ModelEvent:
    id: int
    asset: str
    key: str | None
    at: datetime


@dataclass
class ModelRun:
    key: str
    events: frozenset[int]
    state: str = "queued"
    is_deleted: bool = False
    """Whether cleaning deleted the run. Decisions about later runs do not depend on that."""


@dataclass
class ModelKey:
    waits: dict[int, ModelEvent] = field(default_factory=dict)
    first: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """The instant of the first event, by asset and the event's key."""
    runs: int = 0
    due_at: datetime | None = None
    noted_at: datetime | None = None
    newest: datetime | None = None
    """The instant of the newest event, even if a run has taken the event. A quiet period begins at this instant."""


@dataclass
class ModelDag:
    """A DAG and its runs.

    Args:
        members: The assets of each alias; all DAGs share the mapping.
    """

    spec: Spec
    members: Mapping[str, set[str]]
    is_paused: bool = False
    made_at: datetime | None = None
    queue: list[ModelEvent] = field(default_factory=list)
    """The events that are not divided yet."""
    keys: dict[str, ModelKey] = field(default_factory=dict)
    runs: list[ModelRun] = field(default_factory=list)
    owed: set[tuple[str, int]] = field(default_factory=set)
    """The key and id of each event that came and was not deleted. Each of them is in one run, or waits."""

    def emit(self, event: ModelEvent, alias: str | None) -> None:
        if event.asset in self.spec.assets or alias in self.spec.aliases:
            self.queue.append(event)
            self.owed.update((key, event.id) for key in self._keys_of(event))

    def settle(self, now: datetime) -> None:
        """Create the runs that a scheduler creates at this instant."""
        if self.is_paused:
            return
        self.look(now)
        due = [(one.due_at, key) for key, one in self.keys.items() if one.due_at is not None]
        for _, key in sorted(one for one in due if one[0] <= now):
            if self._may_run(now):
                before = self.keys[key]
                self.runs.append(ModelRun(key, frozenset(before.waits)))
                self.keys[key] = ModelKey(runs=before.runs + 1, newest=before.newest)
                self.made_at = now

    def look(self, now: datetime) -> None:
        """Divide the queued events, and compute when the keys are due."""
        self._divide(now)
        for key, state in self.keys.items():
            if state.due_at is not None and (state.noted_at or now) > now + CLOCK_STEP:
                self._note(key, state, now)

    def _may_run(self, now: datetime) -> bool:
        spec, last = self.spec, self.made_at
        if sum(run.state == "queued" for run in self.runs) >= spec.max_active_runs:
            return False
        # A run in the future was created before the clock was set back.
        if spec.gap is not None and last is not None and last <= now < last + spec.gap:
            return False
        return not spec.depends_on_past or not self.runs or self.runs[-1].state == "success"

    def _divide(self, now: datetime) -> None:
        came: dict[str, dict[tuple[str, str], datetime]] = {}
        # Events of assets that the DAG no longer waits for stay in the queue, because a changed DAG
        # file may name these assets again.
        wanted = self.spec.assets.union(*(self.members[one] for one in self.spec.aliases))
        divided = [event for event in self.queue if event.asset in wanted]
        self.queue = [event for event in self.queue if event.asset not in wanted]
        for event in divided:
            for key in self._keys_of(event):
                if event.id not in self._in_flight(key):
                    self.keys.setdefault(key, ModelKey()).waits[event.id] = event
                    first, part = came.setdefault(key, {}), (event.asset, event.key or "")
                    first[part] = min(first.get(part, event.at), event.at)
        for key, first in came.items():
            state = self.keys[key]
            state.first = {**first, **state.first}
            self._note(key, state, now)

    def _note(self, key: str, state: ModelKey, now: datetime) -> None:
        """Compute when a key is due, after a new event or after the clock was set back."""
        soon = now + CLOCK_STEP
        state.first = {part: now if at > soon else at for part, at in state.first.items()}
        came = [event.at for event in state.waits.values()]
        state.newest = max(came if state.newest is None else [*came, state.newest])
        at = now if state.runs else self._ready_at(self.spec.needs, key, state, now)
        if at is not None and self.spec.quiet is not None:
            at = max(at, state.newest + self.spec.quiet)
        elif at is not None and state.due_at is not None:
            # The key does not become due later than before.
            at = min(at, state.due_at)
        state.due_at, state.noted_at = at, now

    def _ready_at(self, needs: Needs, key: str, state: ModelKey, now: datetime) -> datetime | None:
        """The instant at which the arrived events make the expression true; None: never."""
        if isinstance(needs, str):
            each = [self._asset_ready_at(one, key, state, now) for one in self._resolve(needs)]
            return _earliest(each)
        kind, *parts = needs
        each = [self._ready_at(part, key, state, now) for part in parts]
        return _earliest(each) if kind == "|" else _latest(each)

    def _asset_ready_at(
        self, asset: str, key: str, state: ModelKey, now: datetime
    ) -> datetime | None:
        first = {own: at for (one, own), at in state.first.items() if one == asset}
        return self.spec.rule_of(asset).ready_at(key, first, now)

    def _resolve(self, name: str) -> set[str]:
        return self.members[name] if name in ALIASES else {name}

    def delete(self, asset: str) -> None:
        """Delete an asset's waiting events and, if there were any, return the others to the queue."""
        waits = [*self.queue, *(one for key in self.keys.values() for one in key.waits.values())]
        if asset not in (one.asset for one in waits):
            return
        self.remap()
        for event in (one for one in self.queue if one.asset == asset):
            keys = [key for key in self._keys_of(event) if event.id not in self._in_flight(key)]
            self.owed.difference_update((key, event.id) for key in keys)
        self.queue = [one for one in self.queue if one.asset != asset]

    def remap(self) -> None:
        """Return all waiting events to the queue."""
        back = {one.id: one for key in self.keys.values() for one in key.waits.values()}
        known = {one.id for one in self.queue}
        self.queue += [one for one in back.values() if one.id not in known]
        self.keys = {
            key: ModelKey(runs=state.runs, newest=state.newest) for key, state in self.keys.items()
        }

    def change(self, spec: Spec, *, is_mapped_anew: bool) -> None:
        """Apply a change of the DAG's file."""
        if is_mapped_anew:
            self.remap()
            queued = {event.id for event in self.queue}
            self.owed = {
                (key, event)
                for key, event in self.owed
                if event not in queued or event in self._in_flight(key)
            }
        self.spec = spec
        for event in self.queue:
            self.owed.update((key, event.id) for key in self._keys_of(event))

    def end(self, to: str) -> None:
        """End all runs."""
        for run in self.runs:
            run.state = to if run.state == "queued" else run.state

    def is_needed(self, run: ModelRun) -> bool:
        """True if cleaning must keep the run: it is the newest run, it is active, or one of its events still waits for
        another run."""
        waits = {event for key in self.keys.values() for event in key.waits}
        waits.update(event.id for event in self.queue)
        return run is self.runs[-1] or run.state == "queued" or not waits.isdisjoint(run.events)

    def _keys_of(self, event: ModelEvent) -> tuple[str, ...]:
        return self.spec.rule_of(event.asset).keys_of(event.key)

    def _in_flight(self, key: str) -> frozenset[int]:
        return frozenset().union(*(run.events for run in self.runs if run.key == key))


def _earliest(each: Sequence[datetime | None]) -> datetime | None:
    return min((at for at in each if at is not None), default=None)


def _latest(each: Sequence[datetime | None]) -> datetime | None:
    return None if None in each else max(at for at in each if at is not None)
