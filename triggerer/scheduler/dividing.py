"""Divides the queued events of partitioned DAGs among partition keys, and stores when the run of each key can start.

An event for several keys has one share in each key. The transaction that creates a DAG's runs also divides the DAG's
new events and stores their shares, under the lock of the DAG's row. The next look divides only later events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from triggerer.domain.conditions import aliases_of
from triggerer.domain.partitions import mapper_from_json
from triggerer.domain.partitions.dividing import Part, Partitioner, Share
from triggerer.domain.schedules import OnPartitions, schedule_from_text
from triggerer.observability.logging_setup import LazyLogger
from triggerer.scheduler.looks import PartitionQueue
from triggerer.store.dags.snapshots import CLOCK_STEP, DagRow
from triggerer.store.database.script import Script
from triggerer.store.partitions.keys import (
    KeyRecord,
    KnownKey,
    begin_parts,
    due_keys,
    keys_computed_after,
    known_keys,
    leave_queue,
    parts_of,
    record_keys,
    store_shares,
    undivided,
)

_log = LazyLogger(__name__)

MOST_EVENTS: Final = 1_000
"""The most events of one DAG to divide in one transaction. A higher number would delay the other DAGs."""
_MOST_SHARES: Final = 5_000
"""The most shares of one DAG to store in one transaction. One event may have shares in a thousand keys."""


@dataclass(frozen=True, slots=True)
class Divided:
    """The partition queues of some DAGs, and the DAGs whose schedule cannot be read."""

    queues: Mapping[str, PartitionQueue] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """DAG id to the error."""


NOTHING_DIVIDED: Final = Divided()


def is_partitioned(schedule: Any) -> bool:
    """True if this schedule, in its stored JSON form, is by partition keys."""
    return isinstance(schedule, dict) and "partitioned" in schedule


@lru_cache(maxsize=1_024)
def partitioner_of(schedule: OnPartitions) -> Partitioner:
    """Return the partitioner of a schedule.

    Raises:
        DagError: A mapper cannot be read.
    """
    mappers = {name: mapper_from_json(value) for name, value in schedule.mappers.items()}
    return Partitioner(schedule.condition, mappers, mapper_from_json(schedule.default_mapper))


def divide_all(rows: Iterable[DagRow], *, limit: int) -> Script[Divided]:
    """Divide the queued events of the partitioned DAGs in `rows`. Paused and stale DAGs are skipped.

    Args:
        rows: The result of `lock_and_read`.
        limit: The most runs that one look creates. One more key is read for each DAG, to see if more runs are due.
    """
    partitioned = {row.dag_id: row for row in rows if row.is_partitioned}
    if not partitioned:
        return NOTHING_DIVIDED
    queues: dict[str, PartitionQueue] = {}
    unreadable: dict[str, str] = {}
    for row in partitioned.values():
        if row.is_paused or row.is_stale:
            continue
        try:
            schedule = schedule_from_text(row.schedule_json)
            assert isinstance(schedule, OnPartitions)
            partitioner = partitioner_of(schedule)
        except Exception as error:  # noqa: BLE001  (one unreadable schedule must not stop other DAGs)
            unreadable[row.dag_id] = str(error) or repr(error)
            continue
        queues[row.dag_id] = yield from _divide(row, partitioner, limit)
    return Divided(queues, unreadable)


def _divide(row: DagRow, partitioner: Partitioner, limit: int) -> Script[PartitionQueue]:
    dag_id = row.dag_id
    events = yield from undivided(dag_id, limit=MOST_EVENTS)
    if events:
        division = partitioner.divide(events, most=_MOST_SHARES)
        added = yield from store_shares(dag_id, division.shares)
        yield from leave_queue(dag_id, divided=division.divided, refused=division.refused)
        yield from _record_added(row, partitioner, added)
        _report(dag_id, division.refused)
        if (
            len(division.divided) + len(division.refused) < len(events)
            or len(events) == MOST_EVENTS
        ):
            return PartitionQueue(is_behind=True)
    due = yield from due_keys(dag_id, limit=limit + 1)
    # If the database's clock was set back, the due times from before are too late, and must be computed again. They lie
    # in the future. So no search is needed if `due` contains all keys, and its last and latest time is past.
    if due and (due[-1][1] > row.now or len(due) > limit):
        number = yield from _recompute_outdated(row, partitioner)
        if number == MOST_EVENTS:
            return PartitionQueue(is_behind=True)
        if number:
            due = yield from due_keys(dag_id, limit=limit + 1)
    return queue_at(row.now, due)


def _report(dag_id: str, refused: Mapping[int, str]) -> None:
    for event_id, reason in refused.items():
        # Log one line for all refused events, because a producer that sets no keys may send thousands of events.
        _log.warning(
            "events are for no run",
            dag_id=dag_id,
            count=len(refused),
            first_event_id=event_id,
            reason=reason,
        )
        return


def queue_at(now: datetime, due: Sequence[tuple[str, datetime]]) -> PartitionQueue:
    """Return the queue at the instant `now`.

    Args:
        due: Each key, and the time from which its run can start; earliest first.
    """
    return PartitionQueue(
        tuple(key for key, at in due if at <= now),
        next((at for _, at in due if at > now), None),
    )


def _record_added(row: DagRow, partitioner: Partitioner, added: Sequence[Share]) -> Script[None]:
    times: dict[str, list[datetime]] = {}
    for share in added:
        times.setdefault(share.partition_key, []).append(share.event.timestamp)
    if times:
        known = yield from known_keys(row.dag_id, times)
        newest = {key: newest_at(row.now, came) for key, came in times.items()}
        yield from _record_keys(row, partitioner, newest, known)


def _recompute_outdated(row: DagRow, partitioner: Partitioner) -> Script[int]:
    """Recompute due times that were stored before the clock was set back; return the number of their keys.

    With the stored due times, the runs of these keys would wait until the clock reaches those times again. One call
    recomputes up to `MOST_EVENTS` keys.
    """
    soon = row.now + CLOCK_STEP
    keys = yield from keys_computed_after(row.dag_id, soon, limit=MOST_EVENTS)
    if keys:
        known = yield from known_keys(row.dag_id, keys)
        newest = {key: one.newest_at for key, one in known.items()}
        yield from _record_keys(row, partitioner, newest, known)
    return len(keys)


def _record_keys(
    row: DagRow,
    partitioner: Partitioner,
    newest: Mapping[str, datetime],
    known: Mapping[str, KnownKey],
) -> Script[None]:
    has_aliases = bool(aliases_of(partitioner.condition))
    parts = yield from parts_of(row.dag_id, newest, has_aliases=has_aliases)
    soon = row.now + CLOCK_STEP
    ahead = [key for key, found in parts.items() if any(one.first_at > soon for one in found)]
    if ahead:
        # The clock was set back after these parts arrived, so their `first_at` is in the future.
        # `key_record` counts their deadlines from `row.now` instead. Store `row.now` as their
        # `first_at`. Otherwise the next call would count from a later `row.now`, so each further
        # event would postpone the deadlines.
        yield from begin_parts(row.dag_id, ahead, after=soon, at=row.now)
    records = [
        key_record(
            partitioner,
            key,
            parts.get(key, []),
            at,
            known.get(key),
            now=row.now,
            quiet_period=quiet_period_of(row),
        )
        for key, at in newest.items()
    ]
    yield from record_keys(row.dag_id, records, now=row.now)


def newest_at(now: datetime, times: Iterable[datetime]) -> datetime:
    """Return the latest of these event instants. Instants far ahead of `now` count only if there are no others.

    An event whose instant is far ahead was recorded before the clock was set back. An event whose instant is slightly
    ahead was recorded during this transaction.
    """
    in_order = sorted(times)
    return next((at for at in reversed(in_order) if at <= now + CLOCK_STEP), in_order[-1])


def begun_by(now: datetime, parts: Iterable[Part]) -> list[Part]:
    """Return the parts, with `now` instead of each `first_at` that was stored before the clock was set back."""
    soon = now + CLOCK_STEP
    return [replace(one, first_at=now) if one.first_at > soon else one for one in parts]


def key_record(
    partitioner: Partitioner,
    key: str,
    parts: Sequence[Part],
    newest_at: datetime,
    known: KnownKey | None,
    *,
    now: datetime,
    quiet_period: timedelta | None,
) -> KeyRecord:
    """Return the record to store for a key, after events have arrived for the key, or after the clock was set back.

    Args:
        parts: The key's parts that have arrived for its next run, such as the hours of a day.
        newest_at: The instant of the newest event that arrived.
        known: The stored record, or None if nothing is stored for the key.
        quiet_period: The run starts only after this time without a new event. None: the DAG has no quiet period.
    """
    has_run = known is not None and known.runs > 0
    at = partitioner.due_at(key, begun_by(now, parts), has_run=has_run, now=now)
    times = (newest_at,) if known is None else (newest_at, known.newest_at)
    counted = _latest_by(now, times)
    if at is not None and quiet_period is not None and counted is not None:
        at = max(at, counted + quiet_period)
    is_postponed = quiet_period is not None and newest_at <= now + CLOCK_STEP
    if at is not None and not is_postponed and known is not None and known.due_at is not None:
        # Further events postpone a run only if the DAG has a quiet period. So keep the earlier start.
        at = min(at, known.due_at)
    # Events that lie far in the future do not count for the quiet period, because the time since such an event cannot
    # be measured. If there is no other event, store `now` as the instant of the newest event.
    return KeyRecord(key, at, counted or now)


def _latest_by(now: datetime, times: Iterable[datetime]) -> datetime | None:
    """Return the latest instant that does not lie far ahead of `now`, or None if there is none."""
    return max((at for at in times if at <= now + CLOCK_STEP), default=None)


def quiet_period_of(row: DagRow) -> timedelta | None:
    """Return the DAG's quiet period, or None if the DAG has none."""
    return None if row.quiet_period is None else timedelta(seconds=row.quiet_period)
