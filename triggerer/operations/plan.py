"""What other DAG files would change, before they are put in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.dag_processing import ParsedFolder
from triggerer.domain.assets import Asset
from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.parsed import ParsedDag, Problem
from triggerer.domain.schedules import OnPartitions, condition_of
from triggerer.domain.timetables import TimeRestriction
from triggerer.errors import UnknownDag
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
from triggerer.scheduler.looks import DagSnapshot, Look, PartitionQueue, WaitingAsset
from triggerer.scheduler.replay import (
    Definition,
    RecordedEvent,
    Replayed,
    SetBack,
    assets_waited_for,
    replay,
)
from triggerer.store.engine.database import database_now
from triggerer.store.queries.dag_sync import show_incumbents
from triggerer.store.queries.listing.history import PastEvent, alias_members, newest_events
from triggerer.store.queries.listing.unknown import dag_ids
from triggerer.store.queries.scheduling.reading import CLOCK_STEP

_LOOKED_BACK: Final = timedelta(days=7)


class Change(StrEnum):
    """What becomes of a DAG."""

    NEW = "new"
    """Or it comes back: its file had gone."""
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
    next_before: datetime | None
    """When the run is due that its timetable asks for after these; None: it asks for none."""
    next_after: datetime | None
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
    errors: tuple[Problem, ...] = ()
    """Why files of the folder cannot be used."""


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
        since: Where the history begins; None: a week ago, or with the first event if that is older. Where there are
            more events than are asked for, it begins with the first of these.
        events: At most so many, the newest.
        dag: Only this one.
    Raises:
        UnknownDag: There is no such DAG, neither in force nor in the folder.
    """
    now = await database_now(session)
    past = await newest_events(session, limit=events, since=since)
    history, set_back = _recorded(past, now)
    first = history[0].timestamp if history else now
    begin = since or min(first, now - _LOOKED_BACK)
    if len(past) == events:
        begin = max(begin, first)
    members = {
        alias: frozenset(Asset.identified(*one) for one in found)
        for alias, found in (await alias_members(session)).items()
    }
    asked = _Asked(history, members, begin, now, set_back)
    parsed = parsed.in_place_of(await show_incumbents(session))
    files = {dag_id: new for dag_id, (new, _) in parsed.folder.dags.items()}
    present = await present_dags(session, files, dag=dag)
    ids = sorted({*present, *files} if dag is None else {dag} & {*present, *files})
    if dag is not None and not ids:
        raise UnknownDag(dag).suggest([*await dag_ids(session), *files])
    plans = []
    for dag_id in ids:
        new, old = files.get(dag_id), present.get(dag_id)
        is_kept = new is None and old is not None and parsed.is_unusable(old.path)
        plans.append(asked.plan(dag_id, old, new, is_kept=is_kept))
    return FolderPlan(begin, now, len(history), tuple(plans), parsed.errors)


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
    _positions: dict[Asset, list[int]] = field(default_factory=dict)
    """By asset, where its events are in the history: few DAGs wait for all."""

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
            return DagPlan(
                dag_id,
                change,
                before=replayed,
                after=replayed if after == in_force else self._replay(after),
                queued=0 if old is None else old.queued,
                dropped=_dropped(known, after, self.members),
                due_before=0 if looked is None else len(looked.runs),
                due_after=0 if found is None else len(found.runs),
                next_before=_next(looked),
                next_after=_next(found),
                holds_after=() if found is None else tuple(hold.reason for hold in found.holds),
                is_counted_short=old is not None and old.is_counted_short,
            )
        except Exception as error:  # noqa: BLE001  (likewise)
            return _unknown(dag_id, change, old, _reason(error))

    def _look(
        self,
        known: DagSnapshot,
        old: PresentDag | None,
        before: Definition | None,
        after: Definition | None,
    ) -> Look | None:
        """Return what a scheduler would find with the new definition; None: the DAG is gone."""
        if after is None:
            return None
        dag = _redefined(known, after, self.members)
        if isinstance(after.schedule, OnPartitions) and (
            before is None
            or (before.schedule, before.quiet_period) != (after.schedule, after.quiet_period)
        ):
            dag = replace(dag, partitions=self._mapped_anew(old, after))
        return _looked(dag)

    def _mapped_anew(self, old: PresentDag | None, after: Definition) -> PartitionQueue:
        """Return how the keys stand once what waits is mapped by the new definition."""
        if old is None or not isinstance(after.schedule, OnPartitions):
            return PartitionQueue()
        keys = KeysInMemory(partitioner_of(after.schedule), after.quiet_period, self.members)
        for key in old.past.have_run:
            keys.note_run(key, self.since)
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


def _redefined(
    now: DagSnapshot, definition: Definition, members: Mapping[str, frozenset[Asset]]
) -> DagSnapshot:
    """Return what the scheduler would see of the DAG, with what is queued now, if this were its definition."""
    restriction = TimeRestriction(definition.start_date, definition.end_date, definition.catchup)
    # Otherwise the timetable is asked anew.
    is_asked_for = (
        not now.is_stale and definition.schedule == now.schedule and restriction == now.restriction
    )
    return replace(
        now,
        schedule=definition.schedule,
        events_per_run=definition.events_per_run,
        restriction=restriction,
        min_run_gap=definition.min_run_gap,
        quiet_period=definition.quiet_period,
        max_active_runs=definition.max_active_runs,
        depends_on_past=definition.depends_on_past,
        waiting=_waited_for(now.waiting, definition, members),
        stored_info=now.stored_info if is_asked_for else None,
        is_stale=False,
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


def _dropped(
    known: DagSnapshot, after: Definition | None, members: Mapping[str, frozenset[Asset]]
) -> int:
    """Return how many events wait now of assets that the DAG would no longer wait for."""
    kept = () if after is None else _waited_for(known.waiting, after, members)
    return sum(one.queued for one in known.waiting) - sum(one.queued for one in kept)


def _looked(dag: DagSnapshot) -> Look:
    return look(dag, at_most=MOST_AT_ONCE, bound=MOST_AT_ONCE)


def _next(found: Look | None) -> datetime | None:
    return None if found is None or found.next_info is None else found.next_info.run_after
