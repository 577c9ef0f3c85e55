"""What other DAG files would change, before they are put in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.dag_processing import ParsedFolder
from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import leaves_of
from triggerer.domain.parsed import ParsedDag
from triggerer.domain.partitions.dividing import KeyedEvent
from triggerer.domain.schedules import OnPartitions, condition_of, schedule_from_json
from triggerer.domain.timetables import TimeRestriction
from triggerer.scheduler.decide import look
from triggerer.scheduler.dividing import is_partitioned, partitioner_of
from triggerer.scheduler.explaining_partitions import waiting_partitions
from triggerer.scheduler.keys_in_memory import KeysInMemory
from triggerer.scheduler.looks import DagSnapshot, PartitionQueue, WaitingAsset
from triggerer.scheduler.replay import Definition, RecordedEvent, Replayed, replay
from triggerer.scheduler.snapshots import rows_by_dag, snapshot_of
from triggerer.store.engine.database import database_now
from triggerer.store.engine.script import perform
from triggerer.store.queries.listing.definitions import list_dags
from triggerer.store.queries.listing.history import alias_members, newest_events
from triggerer.store.queries.listing.queued_events import count_queued
from triggerer.store.queries.scheduling.partitions import keys_that_have_run, waiting_events
from triggerer.store.queries.scheduling.reading import DagRow, read_dags

_MOST_AT_ONCE: Final = 1_000
"""Runs that are looked for in what is queued now."""
_MOST_EVENTS: Final = 10_000
"""Of a partitioned DAG that are looked at, of those that wait."""


class Change(StrEnum):
    """What becomes of a DAG."""

    NEW = "new"
    GONE = "gone"
    CHANGED = "changed"
    SAME = "same"
    """As far as its runs are decided by it."""
    KEPT = "kept"
    """Its file cannot be read in the new folder: what is in force stays."""


@dataclass(frozen=True, slots=True)
class DagPlan:
    """One DAG, before and after."""

    dag_id: str
    change: Change
    before: Replayed | None
    """The runs that the present definition makes of the history; None: there is none, or it cannot be said."""
    after: Replayed | None
    """Those that the new one makes."""
    queued: int
    """Events that wait for it now."""
    dropped: int
    """Of those, how many are of assets that it no longer waits for: its next run takes them all the same."""
    due_before: int
    """Runs that are due now, by the present definition."""
    due_after: int
    """Runs that will be due with the new one, at once."""
    holds_after: tuple[str, ...]
    """What the run after these waits for."""
    error: str | None = None
    """Why it cannot be said."""


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """All DAGs by id, and the history that they were asked about."""

    since: datetime
    until: datetime
    events: int
    dags: tuple[DagPlan, ...]


async def plan_folder(
    session: AsyncSession,
    parsed: ParsedFolder,
    *,
    since: datetime | None = None,
    events: int = 10_000,
    dag: str | None = None,
) -> FolderPlan:
    """Return what a folder would change if it took the place of the one in force; change nothing.

    The history is given to both definitions, by the very code that schedules. Events that the new files' own tasks
    would emit are not in it.

    Args:
        since: Where the history begins; None: with the first of the events that are asked for.
        events: At most so many, the newest.
        dag: Only this one.
    """
    now = await database_now(session)
    past = await newest_events(session, limit=events, since=since)
    begin = since or (past[0].timestamp if past else now)
    history = [
        RecordedEvent(one.id, Asset.identified(one.name, one.uri), one.timestamp, one.partition_key)
        for one in past
    ]
    members = {
        alias: frozenset(Asset.identified(*one) for one in found)
        for alias, found in (await alias_members(session)).items()
    }
    asked = _Asked(history, members, begin, now)
    queued = await count_queued(session)
    partitioned = {
        dag_id for dag_id, (new, _) in parsed.folder.dags.items() if is_partitioned(new.schedule)
    }
    present = await _present(session, queued, partitioned)
    broken = {error.file for error in parsed.errors}
    ids = sorted({*present, *parsed.folder.dags} if dag is None else {dag})
    plans = []
    for dag_id in ids:
        new = parsed.folder.dags.get(dag_id)
        old = present.get(dag_id)
        if new is None and old is None:
            continue
        is_kept = new is None and old is not None and old.path in broken
        plans.append(
            asked.plan(
                dag_id,
                old,
                None if new is None else new[0],
                queued.get(dag_id, {}),
                is_kept=is_kept,
            )
        )
    return FolderPlan(begin, now, len(history), tuple(plans))


@dataclass(frozen=True, slots=True)
class _PresentDag:
    path: str
    snapshot: DagSnapshot
    waiting: tuple[KeyedEvent, ...] = ()
    """The events that wait, as many as are looked at; only of DAGs that are, or will be, partitioned."""
    keys: tuple[str, ...] = ()
    """The partition keys that have had a run, likewise."""


async def _present(
    session: AsyncSession,
    queued: Mapping[str, Mapping[tuple[str, str], int]],
    partitioned: Set[str],
) -> dict[str, _PresentDag]:
    """Return the DAGs that are in force, as the scheduler reads them now; stale ones are not."""
    dags = {one.dag_id: one for one in await list_dags(session, limit=0) if not one.is_stale}
    rows = await perform(session, read_dags(sorted(dags), bound=_MOST_AT_ONCE)) if dags else []
    found = {}
    for group in rows_by_dag(rows):
        dag_id = group[0].dag_id
        if group[0].is_partitioned or dag_id in partitioned:
            found[dag_id] = await _present_keys(session, dags[dag_id].path, group)
            continue
        snapshot = snapshot_of(group)
        # The scheduler counts no further than it has to.
        counts = queued.get(dag_id, {})
        waiting = tuple(
            replace(one, queued=counts.get((one.name, one.uri), one.queued))
            for one in snapshot.waiting
        )
        found[dag_id] = _PresentDag(dags[dag_id].path, replace(snapshot, waiting=waiting))
    return found


async def _present_keys(session: AsyncSession, path: str, rows: Sequence[DagRow]) -> _PresentDag:
    dag_id = rows[0].dag_id
    waiting = await perform(session, waiting_events(dag_id, limit=_MOST_EVENTS))
    keys = await perform(session, keys_that_have_run(dag_id, limit=_MOST_EVENTS))
    queue = None
    if rows[0].is_partitioned:
        found = await perform(session, waiting_partitions(rows[0], bound=_MOST_AT_ONCE))
        queue = found.queue
    counts = Counter((one.asset_id, one.asset_name, one.asset_uri) for one in waiting)
    snapshot = snapshot_of(rows, queue)
    aliases = {one.asset_id: one.aliases for one in snapshot.waiting}
    assets = tuple(
        WaitingAsset(asset_id, name, uri, count, aliases.get(asset_id, frozenset()))
        for (asset_id, name, uri), count in counts.items()
    )
    return _PresentDag(path, replace(snapshot, waiting=assets), tuple(waiting), tuple(keys))


@dataclass(frozen=True, slots=True)
class _Asked:
    history: Sequence[RecordedEvent]
    members: Mapping[str, frozenset[Asset]]
    since: datetime
    until: datetime

    def plan(
        self,
        dag_id: str,
        old: _PresentDag | None,
        new: ParsedDag | None,
        queued: Mapping[tuple[str, str], int],
        *,
        is_kept: bool,
    ) -> DagPlan:
        waiting = sum(queued.values())
        before = None if old is None else _definition_of(old.snapshot)
        try:
            after = before if is_kept else None if new is None else _definition_in(new)
            change = _change(before, after, is_kept=is_kept)
            old_now = None if old is None else old.snapshot
            new_now = None
            if after is not None:
                known = old_now or DagSnapshot(
                    dag_id,
                    after.schedule,
                    self.until,
                    is_paused=new is not None and new.is_paused_upon_creation,
                )
                new_now = _redefined(known, after)
                if isinstance(after.schedule, OnPartitions) and after != before:
                    new_now = replace(new_now, partitions=self._mapped_anew(old, after))
            found = (
                None
                if new_now is None
                else look(new_now, at_most=_MOST_AT_ONCE, bound=_MOST_AT_ONCE)
            )
            return DagPlan(
                dag_id,
                change,
                before=self._replay(before),
                after=self._replay(after),
                queued=waiting,
                dropped=_dropped(old_now, new_now),
                due_before=_due(old_now),
                due_after=0 if found is None else len(found.runs),
                holds_after=() if found is None else tuple(hold.reason for hold in found.holds),
            )
        except Exception as error:  # noqa: BLE001  (the boundary to users' timetables)
            reason = f"{type(error).__name__}: {error}"
            change = _change(before, before if new is None else None, is_kept=is_kept)
            return DagPlan(dag_id, change, None, None, waiting, 0, 0, 0, (), reason)

    def _mapped_anew(self, old: _PresentDag | None, after: Definition) -> PartitionQueue:
        """Return how the keys stand once what waits is mapped by the new definition.

        Of an event for several keys of which some have run, those count as well; in force they do not.
        """
        if old is None or not isinstance(after.schedule, OnPartitions):
            return PartitionQueue()
        keys = KeysInMemory(partitioner_of(after.schedule), after.quiet_period, self.members)
        for key in old.keys:
            keys.note_run(key, self.since)
        keys.add(old.waiting, self.until)
        return keys.queue(self.until)

    def _replay(self, definition: Definition | None) -> Replayed | None:
        if definition is None:
            return None
        return replay(
            definition, self.history, members=self.members, since=self.since, until=self.until
        )


def _change(before: Definition | None, after: Definition | None, *, is_kept: bool) -> Change:
    if is_kept:
        return Change.KEPT
    if before is None:
        return Change.NEW
    if after is None:
        return Change.GONE
    return Change.SAME if before == after else Change.CHANGED


def _definition_of(dag: DagSnapshot) -> Definition:
    return Definition(
        dag.dag_id,
        dag.schedule,
        dag.events_per_run,
        dag.restriction.earliest,
        dag.restriction.latest,
        dag.restriction.catchup,
        dag.min_run_gap,
        dag.quiet_period,
        dag.max_active_runs,
        dag.depends_on_past,
    )


def _definition_in(dag: ParsedDag) -> Definition:
    return Definition(
        dag.dag_id,
        schedule_from_json(dag.schedule),
        dag.events_per_run,
        dag.start_date,
        dag.end_date,
        dag.catchup,
        None if dag.min_run_gap is None else timedelta(seconds=dag.min_run_gap),
        None if dag.quiet_period is None else timedelta(seconds=dag.quiet_period),
        dag.max_active_runs,
        dag.depends_on_past,
    )


def _redefined(now: DagSnapshot, definition: Definition) -> DagSnapshot:
    """Return what the scheduler would see of the DAG, with what is queued now, if this were its definition."""
    return replace(
        now,
        schedule=definition.schedule,
        events_per_run=definition.events_per_run,
        restriction=TimeRestriction(definition.start_date, definition.end_date, definition.catchup),
        min_run_gap=definition.min_run_gap,
        quiet_period=definition.quiet_period,
        max_active_runs=definition.max_active_runs,
        depends_on_past=definition.depends_on_past,
        waiting=tuple(one for one in now.waiting if _is_named(one, definition)),
        # The timetable is asked anew when a file changes.
        stored_info=now.stored_info if definition.schedule == now.schedule else None,
    )


def _is_named(waiting: WaitingAsset, definition: Definition) -> bool:
    condition = condition_of(definition.schedule)
    leaves = () if condition is None else leaves_of(condition)
    return any(
        leaf.name in waiting.aliases
        if isinstance(leaf, AssetAlias)
        else (leaf.name, leaf.uri) == (waiting.name, waiting.uri)
        for leaf in leaves
    )


def _dropped(before: DagSnapshot | None, after: DagSnapshot | None) -> int:
    """Return how many events wait now of assets that the DAG would no longer wait for."""
    if before is None:
        return 0
    kept = set() if after is None else {one.asset_id for one in after.waiting}
    return sum(one.queued for one in before.waiting if one.asset_id not in kept)


def _due(dag: DagSnapshot | None) -> int:
    return 0 if dag is None else len(look(dag, at_most=_MOST_AT_ONCE, bound=_MOST_AT_ONCE).runs)
