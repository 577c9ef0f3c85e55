"""Computes what would change if other DAG files were deployed.

The recorded asset events of some days (the history) are replayed twice: with the present DAGs, and with the new DAGs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from triggerer.dag_processing import ParsedFolder
from triggerer.domain.assets import Asset
from triggerer.domain.dag_files.merging import Folder, Incumbents
from triggerer.domain.dag_files.parsed import ParsedDag, Problem, WatcherKey
from triggerer.domain.dag_files.replacing import renamed_assets, with_former_definitions
from triggerer.domain.schedules import OnPartitions
from triggerer.errors import UnknownDag
from triggerer.operations.planning.differences import (
    Difference,
    differences_of_dags,
    schedule_of_new,
)
from triggerer.operations.planning.feeding import UnfedAsset, unfed_assets, waited_for_by
from triggerer.operations.planning.history import recorded
from triggerer.operations.planning.present_dags import (
    MOST_AT_ONCE,
    PresentDag,
    definition_in,
    definition_of,
    present_dags,
)
from triggerer.operations.planning.redefining import dropped, redefined
from triggerer.operations.planning.watchers import WatcherPlan, plan_watchers
from triggerer.scheduler.decide import look
from triggerer.scheduler.dividing import partitioner_of
from triggerer.scheduler.keys_in_memory import KeysInMemory
from triggerer.scheduler.looks import DagSnapshot, Look, PartitionQueue
from triggerer.scheduler.replay import (
    ClockSetBack,
    Definition,
    RecordedEvent,
    Replayed,
    assets_waited_for,
    replay,
)
from triggerer.store.dags.stored_folder import Backlog, backlogs, read_stored_folder
from triggerer.store.dags.sync import show_incumbents
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.events.history import PastEvent, alias_members, newest_events
from triggerer.store.listing.unknown import dag_ids

_LOOKED_BACK: Final = timedelta(days=7)


class Change(StrEnum):
    """How a DAG's new definition differs from the present one."""

    NEW = "new"
    """The DAG is new, or its file was gone and comes back."""
    GONE = "gone"
    CHANGED = "changed"
    SAME = "same"
    """The definition is equal, as far as the store has it. The code in the file may differ."""
    KEPT = "kept"
    """The DAG's file cannot be read in the new folder, so the present definition stays."""


@dataclass(frozen=True, slots=True)
class DagPlan:
    """One DAG under the present and the new definition."""

    dag_id: str
    change: Change
    before: Replayed | None
    """The runs that the recorded events make under the present definition.

    None: there is no such definition, or `error` is set.
    """
    after: Replayed | None
    """The runs that the recorded events make under the new definition.

    None: there is no such definition, or `error` is set.
    """
    queued: int
    """The number of events that wait for the DAG now, counted up to a limit for each asset."""
    dropped: int
    """The number of waiting events of assets that the new definition does not wait for.

    The DAG's next run takes these events, too. But if the DAG has `events_per_run`, or is scheduled by partition keys,
    these events stay in the queue.
    """
    due_before: int
    """The number of runs that are due now under the present definition."""
    due_after: int
    """The number of runs that will be due immediately under the new definition."""
    next_before: datetime | None
    """The instant of the present timetable's next run, after the runs that are due now. None: no further run."""
    next_after: datetime | None
    holds_after: tuple[str, ...]
    """The reasons, such as a pause, why only `due_after` runs will be due immediately under the new definition."""
    is_counted_short: bool = False
    """True if more events may wait than were counted."""
    error: str | None = None
    """Why the history could not be replayed for the DAG; None: it was replayed."""
    differences: tuple[Difference, ...] = ()
    """The values that differ between the present definition and the new one; for a new DAG, its schedule."""
    runs_in_both: int | None = None
    """The number of runs that `before` and `after` have in common. None: `before` or `after` is None."""


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """The plans of all DAGs, sorted by id, and the range of the history."""

    since: datetime
    until: datetime
    events: int
    dags: tuple[DagPlan, ...]
    errors: tuple[Problem, ...] = ()
    """Why some files of the folder cannot be used."""
    watchers: tuple[WatcherPlan, ...] = ()
    """Watchers that are new, gone or changed, sorted by asset and name."""
    unfed_assets: tuple[UnfedAsset, ...] = ()
    """Assets that may get no events, although DAGs wait for them."""


async def plan_folder(
    database: Database,
    parsed: ParsedFolder,
    *,
    since: datetime | None = None,
    events: int = 10_000,
    dag: str | None = None,
) -> FolderPlan:
    """Return the changes that a folder would make if it replaced the present one. Nothing is changed.

    The scheduler's own code replays the recorded events (the history), for the present and for the new definition of
    each DAG. The history lacks events that tasks of the new files would emit. No transaction is open during the replay.

    Args:
        since: The start of the history. None: a week ago, or the time of the oldest replayed event if that is earlier.
        events: The most events to replay. If there are more, only the newest are replayed, and the history starts with
            the oldest of these.
        dag: The result has only this DAG, the assets that it waits for, and their watchers. None: all DAGs.
    Raises:
        UnknownDag: Neither the store nor the folder has the DAG.
    """
    read = await _read(database, since=since, events=events)
    history, set_back = recorded(read.past, read.now)
    first = history[0].timestamp if history else read.now
    begin = since or min(first, read.now - _LOOKED_BACK)
    if len(read.past) == events:
        begin = max(begin, first)
    asked = _Asked(history, read.members, begin, read.now, set_back)
    parsed = parsed.merged_with(read.incumbents)
    files = {dag_id: new for dag_id, (new, _) in parsed.folder.dags.items()}
    present = await present_dags(database, files, dag=dag)
    ids = sorted({*present, *files} if dag is None else {dag} & {*present, *files})
    if dag is not None and not ids:
        async with database.reading() as session:
            known = await dag_ids(session)
        raise UnknownDag(dag).suggest([*known, *files])
    plans = []
    for dag_id in ids:
        new, old = files.get(dag_id), present.get(dag_id)
        is_kept = new is None and old is not None and parsed.is_unusable(old.path)
        planned = asked.plan(dag_id, old, new, is_kept=is_kept)
        in_force, _ = read.folder.dags.get(dag_id, (None, None))
        plans.append(_with_differences(planned, in_force, new))
    return _with_neighbours(
        FolderPlan(begin, read.now, len(history), tuple(plans), parsed.errors),
        read,
        with_former_definitions(read.folder, parsed.folder, parsed.is_unusable),
        dag,
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """The history and the present definitions, as read from the database."""

    now: datetime
    past: Sequence[PastEvent]
    members: Mapping[str, frozenset[Asset]]
    incumbents: Incumbents
    folder: Folder
    backlogs: Mapping[WatcherKey, Backlog]


async def _read(database: Database, *, since: datetime | None, events: int) -> _Read:
    async with database.reading() as session:
        now = await database_now(session)
        past = await newest_events(session, limit=events, since=since)
        members = await alias_members(session)
        incumbents = await show_incumbents(session)
        folder = await read_stored_folder(session)
        behind = await backlogs(session)
    found = {
        alias: frozenset(Asset.identified(*one) for one in assets)
        for alias, assets in members.items()
    }
    return _Read(now, past, found, incumbents, folder, behind)


def _with_differences(plan: DagPlan, in_force: ParsedDag | None, new: ParsedDag | None) -> DagPlan:
    if new is None:
        return plan
    differences = schedule_of_new(new) if in_force is None else differences_of_dags(in_force, new)
    is_changed = plan.change is Change.SAME and bool(differences)
    change = Change.CHANGED if is_changed else plan.change
    return replace(plan, change=change, differences=differences)


def _with_neighbours(plan: FolderPlan, read: _Read, after: Folder, dag: str | None) -> FolderPlan:
    """Add the watchers that the new folder changes, and the assets that may get no events although DAGs wait for them.

    With `dag`, add only assets that this DAG waits for in the present or the new folder, and their watchers.
    """
    renamed = renamed_assets(read.folder, after)
    watchers = plan_watchers(read.folder, after, renamed, read.backlogs)
    assets = unfed_assets(read.folder, after, renamed, read.members)
    if dag is not None:
        names = {*waited_for_by(read.folder, dag), *waited_for_by(after, dag)}
        watchers = [one for one in watchers if one.asset_name in names]
        assets = [one for one in assets if one.name in names]
    return replace(plan, watchers=tuple(watchers), unfed_assets=tuple(assets))


@dataclass(frozen=True, slots=True)
class _Asked:
    history: Sequence[RecordedEvent]
    members: Mapping[str, frozenset[Asset]]
    since: datetime
    until: datetime
    set_back: ClockSetBack | None
    _positions: dict[Asset, list[int]] = field(default_factory=dict)
    """By asset, the indices of its events in `history`. A DAG's replay reads only the events of the DAG's assets."""

    def __post_init__(self) -> None:
        for at, event in enumerate(self.history):
            self._positions.setdefault(event.asset, []).append(at)

    def plan(
        self, dag_id: str, old: PresentDag | None, new: ParsedDag | None, *, is_kept: bool
    ) -> DagPlan:
        before = None if old is None or old.snapshot is None else definition_of(old.snapshot)
        in_force = None if old is None or old.is_stale else before
        try:
            after = before if is_kept else None if new is None else definition_in(new)
        except Exception as error:  # noqa: BLE001  (the boundary to users' timetables)
            change = Change.NEW if old is None or old.is_stale else Change.CHANGED
            return _unknown(dag_id, change, old, _reason(error))
        change = _change(in_force, after, is_kept=is_kept)
        if old is not None and old.snapshot is None:
            if not (is_kept or old.is_stale):
                change = Change.GONE if after is None else Change.CHANGED
            return _unknown(dag_id, change, old, f"as it is in force: {old.error}")
        known = DagSnapshot(
            dag_id,
            None,
            self.until,
            is_paused=new is not None and new.is_paused_upon_creation,
        )
        if old is not None and old.snapshot is not None:
            known = old.snapshot
        try:
            found = self._look(known, old, before, after)
            looked = None if in_force is None else _looked(known)
            replayed = self._replay(in_force)
            replayed_after = replayed if after == in_force else self._replay(after)
            return DagPlan(
                dag_id,
                change,
                before=replayed,
                after=replayed_after,
                queued=0 if old is None else old.queued,
                dropped=dropped(known, after, self.members),
                due_before=0 if looked is None else len(looked.runs),
                due_after=0 if found is None else len(found.runs),
                next_before=_next(looked),
                next_after=_next(found),
                holds_after=() if found is None else tuple(hold.reason for hold in found.holds),
                is_counted_short=old is not None and old.is_counted_short,
                runs_in_both=_in_both(replayed, replayed_after),
            )
        except Exception as error:  # noqa: BLE001  (the boundary to users' timetables)
            return _unknown(dag_id, change, old, _reason(error))

    def _look(
        self,
        known: DagSnapshot,
        old: PresentDag | None,
        before: Definition | None,
        after: Definition | None,
    ) -> Look | None:
        """Return what the scheduler would decide about the DAG now, under the new definition. None: the DAG is gone."""
        if after is None:
            return None
        dag = redefined(known, after, self.members)
        if isinstance(after.schedule, OnPartitions) and (
            before is None
            or (before.schedule, before.quiet_period) != (after.schedule, after.quiet_period)
        ):
            dag = replace(dag, partitions=self._mapped_again(old, after))
        return _looked(dag)

    def _mapped_again(self, old: PresentDag | None, after: Definition) -> PartitionQueue:
        """Return the DAG's partition queue as if the new definition had mapped the waiting events."""
        if old is None or not isinstance(after.schedule, OnPartitions):
            return PartitionQueue()
        keys = KeysInMemory(partitioner_of(after.schedule), after.quiet_period, self.members)
        for key in old.past.have_run:
            keys.record_run(key, self.since)
        keys.add(old.waiting, self.until, past=old.past)
        return keys.queue(self.until)

    def _replay(self, definition: Definition | None) -> Replayed | None:
        if definition is None:
            return None
        assets = assets_waited_for(definition.schedule, self.members)
        positions = sorted(at for asset in assets for at in self._positions.get(asset, ()))
        return replay(
            definition,
            [self.history[at] for at in positions],
            members=self.members,
            since=self.since,
            until=self.until,
            set_back=self.set_back,
        )


def _unknown(dag_id: str, change: Change, old: PresentDag | None, error: str) -> DagPlan:
    return DagPlan(
        dag_id,
        change,
        before=None,
        after=None,
        queued=0 if old is None else old.queued,
        dropped=0,
        due_before=0,
        due_after=0,
        next_before=None,
        next_after=None,
        holds_after=(),
        is_counted_short=old is not None and old.is_counted_short,
        error=error,
    )


def _in_both(before: Replayed | None, after: Replayed | None) -> int | None:
    if before is None or after is None:
        return None
    if before is after:
        return len(before.runs)
    return (Counter(before.runs) & Counter(after.runs)).total()


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _change(before: Definition | None, after: Definition | None, *, is_kept: bool) -> Change:
    if is_kept:
        return Change.KEPT
    if before is None:
        return Change.NEW
    if after is None:
        return Change.GONE
    return Change.SAME if before == after else Change.CHANGED


def _looked(dag: DagSnapshot) -> Look:
    return look(dag, at_most=MOST_AT_ONCE, bound=MOST_AT_ONCE)


def _next(found: Look | None) -> datetime | None:
    return None if found is None or found.next_info is None else found.next_info.run_after
