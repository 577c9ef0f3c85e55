"""The part of `triggerer dags backfill` that plans and starts backfills of partition keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triggerer.cli.terminal.session import read, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_list

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.operations.key_backfills import PlannedKey
    from triggerer.store.listing.views import BackfillView


def keys_in_range(
    config: Path | None, dag_id: str, start: datetime, end: datetime
) -> list[str] | None:
    """Return the partition keys of the periods that start in a time range and have ended.

    None: the DAG is not scheduled by partition keys.
    """

    async def ask(session: AsyncSession) -> list[str] | None:
        from triggerer.operations.key_backfills import is_partitioned, keys_of_periods

        if not await is_partitioned(session, dag_id):
            return None
        return await keys_of_periods(session, dag_id, start, end)

    return read(config, ask)


def start_keys(
    config: Path | None,
    dag_id: str,
    keys: Sequence[str],
    *,
    reprocess: str,
    max_active: int,
    params: dict[str, Any] | None,
) -> BackfillView:
    """Start a backfill of these partition keys, and return the backfill."""

    async def change(session: AsyncSession) -> BackfillView:
        from triggerer.domain.backfills import Reprocess
        from triggerer.operations.key_backfills import start_key_backfill

        return await start_key_backfill(
            session,
            this_user(),
            dag_id,
            keys,
            reprocess=Reprocess(reprocess),
            max_active=max_active,
            params=params,
        )

    return write(config, change)


def show_plan(
    config: Path | None, dag_id: str, keys: Sequence[str], reprocess: str, limit: int, *, json: bool
) -> None:
    """Print what the backfill would do for each key."""

    async def ask(session: AsyncSession) -> list[PlannedKey]:
        from triggerer.domain.backfills import Reprocess
        from triggerer.operations.key_backfills import plan_keys

        return await plan_keys(session, dag_id, keys, reprocess=Reprocess(reprocess))

    planned = read(config, ask)
    shown = planned[:limit] if limit else planned
    print_list(
        shown,
        (Column("partition key", Kind.TEXT), "what", Column("run", Kind.TEXT)),
        lambda row: (
            row.partition_key,
            row.step,
            None if row.run_id is None else f"{row.run_id} ({row.run_state})",
        ),
        json=json,
        empty="No partition key.",
        limit=limit,
    )
