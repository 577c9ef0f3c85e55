"""Replaces the definition in the scheduler's snapshot of a DAG. The snapshot keeps the events that wait now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.schedules import condition_of
from triggerer.domain.timetables import TimeRestriction
from triggerer.scheduler.looks import DagSnapshot, WaitingAsset
from triggerer.scheduler.replay import Definition


def redefined(
    now: DagSnapshot, definition: Definition, members: Mapping[str, frozenset[Asset]]
) -> DagSnapshot:
    """Return the snapshot `now` as if the DAG had this definition.

    The waiting events of assets that the definition does not name, directly or through an alias, are left out.
    """
    restriction = TimeRestriction(definition.start_date, definition.end_date, definition.catchup)
    # The stored next run is valid only if the DAG is not stale, and its schedule, dates and
    # `catchup` are unchanged. Otherwise the timetable must plan another run.
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
    """Return the waiting assets that the definition names, directly or through an alias."""
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


def dropped(
    known: DagSnapshot, after: Definition | None, members: Mapping[str, frozenset[Asset]]
) -> int:
    """Return how many waiting events belong to assets that the DAG would no longer wait for."""
    kept = () if after is None else _waited_for(known.waiting, after, members)
    return sum(one.queued for one in known.waiting) - sum(one.queued for one in kept)
