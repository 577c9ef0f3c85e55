"""What other DAG files would change, before they are put in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.dag_processing import ParsedFolder
from triggerer.domain.assets import Asset
from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.parsed import ParsedDag
from triggerer.domain.schedules import OnPartitions, condition_of
from triggerer.domain.timetables import TimeRestriction
from triggerer.operations.present_dags import (
    MOST_AT_ONCE,
    PresentDag,
    definition_in,
    definition_of,
    present_dags,
)
from triggerer.scheduler.decide import look
from triggerer.scheduler.dividing import partitioner_of
from triggerer.scheduler.keys_in_memory import KeysInMemory
from triggerer.scheduler.looks import DagSnapshot, PartitionQueue, WaitingAsset
from triggerer.scheduler.replay import Definition, RecordedEvent, Replayed, SetBack, replay
from triggerer.store.engine.database import database_now
from triggerer.store.queries.listing.history import PastEvent, alias_members, newest_events
from triggerer.store.queries.scheduling.reading import CLOCK_STEP


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
    """Events that wait for it now, of no asset more than are counted."""
    dropped: int
    """Of those, how many are of assets that it no longer waits for: its next run takes them all the same."""
    due_before: int
    """Runs that are due now, by the present definition."""
    due_after: int
    """Runs that will be due with the new one, at once."""
    holds_after: tuple[str, ...]
    """What the run after these waits for."""
    is_counted_short: bool = False
    """More events may wait than were counted."""
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
    history, set_back = _recorded(past, now)
    begin = since or (history[0].timestamp if history else now)
    members = {
        alias: frozenset(Asset.identified(*one) for one in found)
        for alias, found in (await alias_members(session)).items()
    }
    asked = _Asked(history, members, begin, now, set_back)
    files = {dag_id: new for dag_id, (new, _) in parsed.folder.dags.items()}
    present = await present_dags(session, files, dag=dag)
    broken = {error.file for error in parsed.errors}
    ids = sorted({*present, *files} if dag is None else {dag})
    plans = []
    for dag_id in ids:
        new = files.get(dag_id)
        old = present.get(dag_id)
        if new is None and old is None:
            continue
        is_kept = new is None and old is not None and old.path in broken
        plans.append(asked.plan(dag_id, old, new, is_kept=is_kept))
    return FolderPlan(begin, now, len(history), tuple(plans))


def _recorded(
    past: Sequence[PastEvent], now: datetime
) -> tuple[list[RecordedEvent], SetBack | None]:
    """Return the history by the clock as it is now.

    What lies ahead was recorded before the clock was set back. It is moved, all of it by as much, so that the last of
    it came when the clock was set back: just before the first event after it.
    """
    ahead = [number for number, one in enumerate(past) if one.timestamp > now + CLOCK_STEP]
    moved = {past[number].id for number in ahead}
    set_back, by = None, timedelta()
    if ahead:
        last = ahead[-1]
        at = past[last + 1].timestamp if last + 1 < len(past) else now
        set_back = SetBack(past[last].id, at)
        # Before it, or both would count as of one transaction.
        by = max(past[number].timestamp for number in ahead) - at + timedelta.resolution
    history = [
        RecordedEvent(
            one.id,
            Asset.identified(one.name, one.uri),
            one.timestamp - by if one.id in moved else one.timestamp,
            one.partition_key,
        )
        for one in past
    ]
    return history, set_back


@dataclass(frozen=True, slots=True)
class _Asked:
    history: Sequence[RecordedEvent]
    members: Mapping[str, frozenset[Asset]]
    since: datetime
    until: datetime
    set_back: SetBack | None

    def plan(
        self,
        dag_id: str,
        old: PresentDag | None,
        new: ParsedDag | None,
        *,
        is_kept: bool,
    ) -> DagPlan:
        waiting = 0 if old is None else old.queued
        is_counted_short = old is not None and old.is_counted_short
        before = None if old is None else definition_of(old.snapshot)
        try:
            after = before if is_kept else None if new is None else definition_in(new)
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
                new_now = _redefined(known, after, self.members)
                if isinstance(after.schedule, OnPartitions) and after != before:
                    new_now = replace(new_now, partitions=self._mapped_anew(old, after))
            found = (
                None if new_now is None else look(new_now, at_most=MOST_AT_ONCE, bound=MOST_AT_ONCE)
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
                is_counted_short=is_counted_short,
            )
        except Exception as error:  # noqa: BLE001  (the boundary to users' timetables)
            reason = f"{type(error).__name__}: {error}"
            change = _change(before, before if new is None else None, is_kept=is_kept)
            return DagPlan(
                dag_id, change, None, None, waiting, 0, 0, 0, (), is_counted_short, reason
            )

    def _mapped_anew(self, old: PresentDag | None, after: Definition) -> PartitionQueue:
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
            definition,
            self.history,
            members=self.members,
            since=self.since,
            until=self.until,
            set_back=self.set_back,
        )


def _change(before: Definition | None, after: Definition | None, *, is_kept: bool) -> Change:
    if is_kept:
        return Change.KEPT
    if before is None:
        return Change.NEW
    if after is None:
        return Change.GONE
    return Change.SAME if before == after else Change.CHANGED


def _redefined(
    now: DagSnapshot, definition: Definition, members: Mapping[str, frozenset[Asset]]
) -> DagSnapshot:
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
        waiting=_waited_for(now.waiting, definition, members),
        # The timetable is asked anew when a file changes.
        stored_info=now.stored_info if definition.schedule == now.schedule else None,
    )


def _waited_for(
    waiting: Sequence[WaitingAsset],
    definition: Definition,
    members: Mapping[str, frozenset[Asset]],
) -> tuple[WaitingAsset, ...]:
    """Return those of what waits that the definition names, by themselves or by an alias."""
    condition = condition_of(definition.schedule)
    if condition is None:
        return ()
    named = frozenset(assets_of(condition))
    found = []
    for one in waiting:
        asset = Asset.identified(one.name, one.uri)
        aliases = frozenset(
            alias.name for alias in aliases_of(condition) if asset in members.get(alias.name, ())
        )
        if aliases or asset in named:
            found.append(replace(one, aliases=aliases))
    return tuple(found)


def _dropped(before: DagSnapshot | None, after: DagSnapshot | None) -> int:
    """Return how many events wait now of assets that the DAG would no longer wait for."""
    if before is None:
        return 0
    kept = set() if after is None else {one.asset_id for one in after.waiting}
    return sum(one.queued for one in before.waiting if one.asset_id not in kept)


def _due(dag: DagSnapshot | None) -> int:
    return 0 if dag is None else len(look(dag, at_most=MOST_AT_ONCE, bound=MOST_AT_ONCE).runs)
