"""Bugs in the scheduling by partition keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.simulation.mutations.registry import Replacements, answered, mutation
from triggerer.domain.partitions.dividing import Part, Partitioner, Share
from triggerer.domain.partitions.rolling_up import RollupMapper
from triggerer.domain.schedules import partition_key_of
from triggerer.domain.timetables import DataInterval
from triggerer.scheduler import decide, dividing, optimistic
from triggerer.scheduler.decide import _Upcoming
from triggerer.scheduler.looks import DagSnapshot, Look, NewRun, PartitionQueue
from triggerer.store.dags import candidates
from triggerer.store.dags.snapshots import CLOCK_STEP, DagRow, read_dags
from triggerer.store.database.script import Script
from triggerer.store.partitions import keys as partitions
from triggerer.store.partitions.keys import KeyRecord, KnownKey
from triggerer.store.runs.creation.planned_runs import PlannedDag

_LATEST = datetime.max.replace(tzinfo=UTC)


@mutation(rules="P2", seed=17, quick=True)
def a_deadline_is_over_at_once() -> Replacements:
    """A roll-up with a deadline counts as overdue from the beginning."""
    right = RollupMapper.progress

    def progress(
        self: RollupMapper, downstream_key: str, arrived: Collection[str], **options: Any
    ) -> Any:
        return right(self, downstream_key, arrived, **{**options, "now": _LATEST})

    yield right, progress


@mutation(rules="L2", seed=13)
def a_deadline_wakes_nobody() -> Replacements:
    """The alarm does not know when the next key is due by its deadline."""
    right = dividing.queue_at

    def queue_at(now: datetime, due: Sequence[tuple[str, datetime]]) -> PartitionQueue:
        return replace(right(now, due), next_at=None)

    yield right, queue_at


@mutation(rules="L2", seed=13)
def a_key_that_has_run_waits_for_all_its_parts_again() -> Replacements:
    """After a key's run, the key waits for all its parts again. So an event that corrects one part starts no run."""
    right = dividing.key_record

    def key_record(
        partitioner: Partitioner,
        key: str,
        parts: Sequence[Part],
        newest_at: datetime,
        known: KnownKey | None,
        **options: Any,
    ) -> KeyRecord:
        without_runs = None if known is None else replace(known, runs=0)
        return right(partitioner, key, parts, newest_at, without_runs, **options)

    yield right, key_record


@mutation(rules="P4", seed=1, quick=True)
def a_quiet_period_counts_from_the_first_event() -> Replacements:
    """The quiet period of a key counts from its first event, not from its newest."""

    def latest_by(now: datetime, times: Sequence[datetime]) -> datetime | None:
        return min((one for one in times if one <= now + CLOCK_STEP), default=None)

    yield dividing._latest_by, latest_by


@mutation(rules="P1|P4", seed=1605)
def a_share_that_a_run_took_counts_again() -> Replacements:
    """When waiting events are mapped to keys again, an event counts for a key whose run already used the event. So the
    key gets a run without an event."""
    right = partitions.store_shares

    def store_shares(dag_id: str, shares: Sequence[Share]) -> Script[list[Share]]:
        def answer(step: Any, rows: list[Any]) -> list[Any]:
            if step.statement is not partitions.SHARE:
                return rows
            return [(one.partition_key, one.event.id) for one in shares]

        return answered(right(dag_id, shares), answer)

    yield right, store_shares


@mutation(rules="P1|P3|T4|S9", seed=13, quick=True)
def keys_are_divided_without_a_lock() -> Replacements:
    """Two schedulers divide the queued events of one DAG at the same time."""
    right = candidates.lock_and_read

    def lock_and_read(
        dag_ids: Sequence[str], *, bound: int, waits: bool = True
    ) -> Script[list[DagRow]]:
        rows = yield from read_dags(dag_ids, bound=bound)
        if any(row.is_partitioned for row in rows):
            return rows
        return (yield from right(dag_ids, bound=bound, waits=waits))

    yield right, lock_and_read


@mutation(rules="L2", seed=0)
def parts_of_the_last_look_are_forgotten() -> Replacements:
    """A roll-up counts only the parts that came since the scheduler's last look."""
    right = dividing.key_record

    def key_record(
        partitioner: Partitioner,
        key: str,
        parts: Sequence[Part],
        newest_at: datetime,
        known: KnownKey | None,
        **options: Any,
    ) -> KeyRecord:
        lane_tail = [one for one in parts if one.first_at >= newest_at]
        return right(partitioner, key, lane_tail, newest_at, known, **options)

    yield right, key_record


@mutation(rules="T6", seed=6, quick=True)
def a_key_is_that_of_the_instant_of_the_run() -> Replacements:
    """A timetable's run has the key of its due instant, and not the key of its data interval."""
    right = decide._scheduled

    def scheduled(dag: DagSnapshot, upcoming: _Upcoming) -> NewRun:
        run = right(dag, upcoming)
        assert run.info is not None
        instant = DataInterval.exact(run.info.run_after)
        return replace(run, partition_key=partition_key_of(dag.schedule, instant))

    yield right, scheduled


@mutation(rules="T6", seed=6, quick=True)
def many_planned_runs_lose_their_keys() -> Replacements:
    """The runs of several DAGs that one statement creates have no partition keys."""
    right = optimistic._planned

    def planned(found: Look, row: DagRow) -> PlannedDag | None:
        dag = right(found, row)
        if dag is None:
            return None
        return replace(dag, runs=tuple(replace(run, partition_key=None) for run in dag.runs))

    yield right, planned
