"""Updates the rows of DAGs, and the rows that say which assets and aliases each DAG waits for."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.domain.dag_files.parsed import ParsedDag
from triggerer.domain.schedules import condition_in_json
from triggerer.store.dags.due_moments import renew_due_moments
from triggerer.store.dags.sync.differences import Changed, assign
from triggerer.store.schema.models import Dag, DagScheduleAlias, DagScheduleAsset


async def sync_dags(
    session: AsyncSession, folder: Folder, kept: Set[str], changed: Changed, now: datetime
) -> list[str]:
    """Update the DAG rows to match the DAG files.

    Args:
        kept: The files whose stored definitions stay for now, for instance because the file is broken.
        changed: Receives the ids of the changed DAGs.
    Returns:
        The ids of partitioned DAGs with a new schedule or quiet period. The caller must put their waiting events back
        into the queue, because the events may now belong to other partition keys.
    """
    rows = {row.dag_id: row for row in await session.scalars(select(Dag))}
    rescheduled: list[Dag] = []
    remapped: list[str] = []
    for dag_id, (dag, path) in folder.dags.items():
        row = rows.get(dag_id)
        if row is None:
            row = Dag(dag_id=dag_id, is_paused=dag.is_paused_upon_creation)
            session.add(row)
        columns = {"is_stale": False, "path": path, **_columns(dag)}
        before = [getattr(row, name) for name in _WHEN_DUE]
        if "partitioned" in (row.schedule or {}) and any(
            getattr(row, name) != columns[name] for name in ("schedule", "quiet_period")
        ):
            remapped.append(dag_id)
        if assign(row, **columns):
            row.updated_at = now
            changed.dag_ids.add(dag_id)
        if before != [columns[name] for name in _WHEN_DUE]:
            rescheduled.append(row)
    for dag_id in rows.keys() - folder.dags.keys():
        row = rows[dag_id]
        if row.path not in kept and not row.is_stale:
            row.is_stale = True
            row.updated_at = now
            changed.dag_ids.add(dag_id)
    await renew_due_moments(session, rescheduled)
    return remapped


def _columns(dag: ParsedDag) -> dict[str, Any]:
    return {
        "description": dag.description,
        "tags": dag.tags,
        "schedule": dag.schedule,
        "max_active_runs": dag.max_active_runs,
        "events_per_run": dag.events_per_run,
        "params": dag.params,
        "tasks": dag.tasks,
        "callbacks": dag.callbacks,
        "start_date": dag.start_date,
        "end_date": dag.end_date,
        "catchup": dag.catchup,
        "min_run_gap": dag.min_run_gap,
        "quiet_period": dag.quiet_period,
        "depends_on_past": dag.depends_on_past,
        "priority": dag.priority,
        "pools": ",".join(dag.pools) or None,
    }


_WHEN_DUE: Final = ("schedule", "start_date", "end_date", "catchup", "is_stale")
"""The columns that decide when a timetable makes a DAG due."""


async def sync_schedules(
    session: AsyncSession,
    folder: Folder,
    assets: Mapping[AssetKey, int],
    aliases: Mapping[str, int],
    changed: Changed,
) -> None:
    """Store which assets and aliases each DAG waits for. A stale DAG keeps these rows, but gets no events.

    Args:
        assets: The id of each asset.
        aliases: The id of each alias, by name.
        changed: The ids of the changed DAGs are added to it.
    """
    asset_rows = {
        (r.dag_id, r.asset_id): r for r in await session.scalars(select(DagScheduleAsset))
    }
    alias_rows = {
        (r.dag_id, r.alias_id): r for r in await session.scalars(select(DagScheduleAlias))
    }
    wanted_assets, wanted_aliases = set[tuple[str, int]](), set[tuple[str, int]]()
    for dag_id, (dag, _) in folder.dags.items():
        if dag.schedule is not None:
            condition = condition_in_json(dag.schedule)
            if condition is None:
                continue
            for asset in assets_of(condition):
                wanted_assets.add((dag_id, assets[AssetKey(asset.name, asset.uri)]))
            for alias in aliases_of(condition):
                wanted_aliases.add((dag_id, aliases[alias.name]))
    for dag_id, asset_id in sorted(wanted_assets - asset_rows.keys()):
        session.add(DagScheduleAsset(dag_id=dag_id, asset_id=asset_id))
        changed.dag_ids.add(dag_id)
    for dag_id, alias_id in sorted(wanted_aliases - alias_rows.keys()):
        session.add(DagScheduleAlias(dag_id=dag_id, alias_id=alias_id))
        changed.dag_ids.add(dag_id)
    gone: list[DagScheduleAsset | DagScheduleAlias] = [
        *(row for key, row in asset_rows.items() if key not in wanted_assets),
        *(row for key, row in alias_rows.items() if key not in wanted_aliases),
    ]
    for row in gone:
        if row.dag_id in folder.dags:
            await session.delete(row)
            changed.dag_ids.add(row.dag_id)
