"""Which runs of partition keys must exist: a plain account of docs/partitions.md, which shares no code."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.properties.two_assets import ASSETS

MONTHS = {
    "2026-Q1": ("2026-01", "2026-02", "2026-03"),
    "2026-Q2": ("2026-04", "2026-05", "2026-06"),
}
ENDS = {"2026-Q1": datetime(2026, 4, 1, tzinfo=UTC), "2026-Q2": datetime(2026, 7, 1, tzinfo=UTC)}
PATIENCE = timedelta(minutes=30)
KEYS = (*MONTHS, *(month for months in MONTHS.values() for month in months), "else", None)


@dataclass(frozen=True)
class Spec:
    """A DAG whose key is a quarter or a month.

    Each of `mappers`, of `a` and of `b`, is `same`, `all`, `two` or `late` (months to quarters: all of them, two, or
    what is there half an hour after the quarter), or `months` (a quarter to its months).
    """

    needs: str
    """`a`, `a & b` or `a | b`."""
    mappers: tuple[str, str]
    max_active_runs: int = 16

    @property
    def assets(self) -> tuple[str, ...]:
        return ("a",) if self.needs == "a" else ASSETS

    def keys_of(self, asset: str, key: str | None) -> tuple[str, ...]:
        """For which runs an event is; empty: it is refused."""
        mapper = self.mappers[ASSETS.index(asset)]
        if key is None:
            return ()
        if mapper == "same":
            return (key,)
        if mapper == "months":
            return MONTHS.get(key, ())
        return tuple(quarter for quarter, months in MONTHS.items() if key in months)

    def has(self, asset: str, key: str, there: set[tuple[str, str]], at: datetime) -> bool:
        """Whether what is there of an asset is enough; `there` has (asset, key of the event)."""
        ours = {event for owner, event in there if owner == asset}
        match self.mappers[ASSETS.index(asset)]:
            case "all":
                return len(ours) == 3
            case "two":
                return len(ours) >= 2
            case "late":
                return len(ours) == 3 or (bool(ours) and at >= ENDS[key] + PATIENCE)
            case _:
                return bool(ours)

    def is_true(self, key: str, there: set[tuple[str, str]], at: datetime) -> bool:
        each = [self.has(asset, key, there, at) for asset in self.assets]
        return any(each) if self.needs == "a | b" else all(each)


@dataclass
class ModelKey:
    waits: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By event: (asset, key of the event)."""
    runs: int = 0
    due_at: datetime | None = None


@dataclass
class ModelDag:
    spec: Spec
    is_paused: bool = False
    queue: list[tuple[int, str, str | None]] = field(default_factory=list)
    """(event, asset, key) of what was not divided yet."""
    keys: dict[str, ModelKey] = field(default_factory=dict)
    runs: list[tuple[str, frozenset[int], str]] = field(default_factory=list)
    """(key, events, state)."""

    def emit(self, event: int, asset: str, key: str | None) -> None:
        if asset in self.spec.assets:
            self.queue.append((event, asset, key))

    def settle(self, now: datetime) -> None:
        """Make the runs that a scheduler makes at this instant."""
        if self.is_paused:
            return
        touched = set()
        for event, asset, own in self.queue:
            for key in self.spec.keys_of(asset, own):
                assert own is not None
                if event not in self._taken(key):
                    self.keys.setdefault(key, ModelKey()).waits[event] = (asset, own)
                    touched.add(key)
        self.queue.clear()
        for key in touched:
            self._note(key, self.keys[key], now)
        due = [(one.due_at, key) for key, one in self.keys.items() if one.due_at is not None]
        active = sum(state == "queued" for _, _, state in self.runs)
        room = max(self.spec.max_active_runs - active, 0)
        for _, key in sorted(one for one in due if one[0] <= now)[:room]:
            state = self.keys[key]
            self.runs.append((key, frozenset(state.waits), "queued"))
            state.waits, state.due_at = {}, None
            state.runs += 1

    def _taken(self, key: str) -> frozenset[int]:
        return frozenset().union(*(events for one, events, _ in self.runs if one == key))

    def _note(self, key: str, state: ModelKey, now: datetime) -> None:
        there = set(state.waits.values())
        deadline = ENDS.get(key, now) + PATIENCE
        if state.runs or self.spec.is_true(key, there, now):
            state.due_at = min(now, state.due_at or now)
        elif deadline > now and self.spec.is_true(key, there, deadline):
            state.due_at = min(deadline, state.due_at or deadline)

    def delete(self, asset: str) -> None:
        """What waits of an asset is deleted, and the rest divided anew, if there is any."""
        kept = [waiting for state in self.keys.values() for waiting, _ in state.waits.values()]
        if asset not in (*kept, *(one for _, one, _ in self.queue)):
            return
        self.remap()
        self.queue = [one for one in self.queue if one[1] != asset]

    def remap(self) -> None:
        """What waits goes back to the queue."""
        back = {event: one for state in self.keys.values() for event, one in state.waits.items()}
        known = {event for event, _, _ in self.queue}
        self.queue += [(event, *one) for event, one in back.items() if event not in known]
        for state in self.keys.values():
            state.waits, state.due_at = {}, None
