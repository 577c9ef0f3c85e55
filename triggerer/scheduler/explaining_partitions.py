"""Lists the partition keys that a DAG waits for, and the events that each key lacks. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from triggerer.domain.conditions import aliases_of
from triggerer.domain.partitions.dividing import Lack, Part, Partitioner, Share
from triggerer.domain.schedules import OnPartitions, schedule_from_text
from triggerer.scheduler.dividing import (
    MOST_EVENTS,
    begun_by,
    key_record,
    newest_at,
    partitioner_of,
    queue_at,
    quiet_period_of,
)
from triggerer.scheduler.holds import Hold
from triggerer.scheduler.looks import PartitionQueue
from triggerer.store.dags.snapshots import CLOCK_STEP, DagRow
from triggerer.store.dags.waiting import find_used_shares
from triggerer.store.database.script import Script
from triggerer.store.partitions.keys import (
    alias_names,
    due_keys,
    keys_computed_after,
    known_keys,
    newest_events,
    parts_of,
    undivided,
    waiting_keys,
)

_MOST_KEYS: Final = 100


@dataclass(frozen=True, slots=True)
class KeyedPast:
    """The events that earlier runs of some partition keys use."""

    have_run: frozenset[str] = frozenset()
    """Keys for which a scheduler has created a run."""
    used_shares: frozenset[tuple[str, int]] = frozenset()
    """Pairs of a partition key and an event id: a run of this key uses this event."""

    def without_used(self, shares: Iterable[Share]) -> list[Share]:
        """Return the shares that no run uses."""
        return [one for one in shares if (one.partition_key, one.event.id) not in self.used_shares]


NO_PAST: Final = KeyedPast()


@dataclass(frozen=True, slots=True)
class WaitingPartition:
    """A partition key with at least one event."""

    partition_key: str
    due_at: datetime | None
    """The earliest start of the key's run, which may lie in the past. None: the run needs another event first."""
    runs: int
    """How many runs the scheduler has created for this key."""
    lacks: tuple[Lack, ...]
    """The events that are missing, for each asset and alias that the DAG's schedule names.

    Empty if no event is missing, or if the key has had a run."""


@dataclass(frozen=True, slots=True)
class WaitingPartitions:
    """The waiting keys of one DAG."""

    queue: PartitionQueue
    keys: tuple[WaitingPartition, ...] = ()
    """The first keys, in alphabetical order."""
    refusals: tuple[Hold, ...] = ()
    """A hold for each asset whose newest event the partition mapper refused, so that no run takes it."""


def waiting_partitions(row: DagRow, *, bound: int) -> Script[WaitingPartitions]:
    """Return the waiting keys as the scheduler would find them after it has divided the queued events.

    Args:
        bound: Counting of due keys stops at this number.
    Raises:
        DagError: The schedule cannot be read here.
    """
    schedule = schedule_from_text(row.schedule_json)
    assert isinstance(schedule, OnPartitions)
    partitioner = partitioner_of(schedule)
    dag_id = row.dag_id
    has_aliases = bool(aliases_of(partitioner.condition))
    due = dict((yield from due_keys(dag_id, limit=bound)))
    queued = yield from undivided(dag_id, limit=MOST_EVENTS)
    aliases = (yield from alias_names(dag_id)) if has_aliases else {}
    shares = partitioner.divide(queued, most=len(queued) * _MOST_KEYS).shares
    past = yield from past_of(dag_id, shares)
    fresh = _parts(aliases, past.without_used(shares))
    soon = row.now + CLOCK_STEP
    restarted = set((yield from keys_computed_after(dag_id, soon, limit=MOST_EVENTS)))
    keys = sorted({*fresh, *restarted, *(yield from waiting_keys(dag_id, limit=_MOST_KEYS))})
    stored = yield from parts_of(dag_id, keys, has_aliases=has_aliases)
    known = yield from known_keys(dag_id, keys)
    found = []
    for key in keys:
        parts = begun_by(row.now, [*stored.get(key, []), *fresh.get(key, [])])
        before = known.get(key)
        runs = 0 if before is None else before.runs
        if key in fresh or key in restarted:
            came = [part.first_at for part in fresh.get(key, ())]
            newest = newest_at(row.now, came or [known[key].newest_at])
            record = key_record(
                partitioner,
                key,
                parts,
                newest,
                before,
                now=row.now,
                quiet_period=quiet_period_of(row),
            )
            at = record.due_at
            if at is not None:
                due[key] = at
        else:
            at = None if before is None else before.due_at
        lacks = () if runs else partitioner.lacks(key, parts, now=row.now)
        found.append(WaitingPartition(key, at, runs, lacks))
    in_order = sorted(due.items(), key=lambda one: (one[1], one[0]))
    refusals = yield from _refusals(dag_id, partitioner)
    return WaitingPartitions(queue_at(row.now, in_order), tuple(found[:_MOST_KEYS]), refusals)


def past_of(dag_id: str, shares: Sequence[Share]) -> Script[KeyedPast]:
    """Return which keys of these shares have had runs, and which of the shares a run has used already.

    Example: an event has shares in the keys A and B. A run of A has used the event, and the event still waits for B.
    Then the schedule changes, and the event is divided again among A and B. The new share in A counts as used.
    """
    known = yield from known_keys(dag_id, {one.partition_key for one in shares})
    have_run = frozenset(key for key, one in known.items() if one.runs)
    asked = {(one.partition_key, one.event.id) for one in shares if one.partition_key in have_run}
    return KeyedPast(have_run, (yield from find_used_shares(dag_id, sorted(asked))))


def _parts(aliases: Mapping[int, frozenset[str]], shares: Sequence[Share]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for one in shares:
        event = one.event
        names = aliases.get(event.asset_id, frozenset())
        part = Part(
            event.asset_id, event.asset_name, event.asset_uri, one.part, event.timestamp, names
        )
        found.setdefault(one.partition_key, []).append(part)
    return found


def _refusals(dag_id: str, partitioner: Partitioner) -> Script[tuple[Hold, ...]]:
    newest = yield from newest_events(dag_id)
    refused = partitioner.divide(newest, most=1).refused
    return tuple(
        Hold.refused(event.id, event.asset_name, refused[event.id])
        for event in newest
        if event.id in refused
    )
