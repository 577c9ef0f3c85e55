"""Assigns triggering events to a run of the command `dags test`, instead of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.transactions import insert_into
from triggerer.store.schema.models import AssetEvent, DagRun, QueuedAssetEvent


async def assign_events(session: AsyncSession, run_pk: int, event_ids: Sequence[int]) -> None:
    """Assign these events to the run, whether or not its DAG waits for their assets.

    `dags test` calls this function on a store without a scheduler. An assigned event no longer waits in the DAG's
    queue.
    """
    if not event_ids:
        return
    dag_id = await session.scalar(select(DagRun.dag_id).where(DagRun.id == run_pk))
    events = await session.execute(
        select(AssetEvent.id, AssetEvent.asset_id).where(AssetEvent.id.in_(event_ids))
    )
    rows = [
        {"dag_id": dag_id, "asset_event_id": one, "asset_id": asset, "run_pk": run_pk}
        for one, asset in events
    ]
    await session.execute(
        insert_into(session, QueuedAssetEvent)
        .values(rows)
        .on_conflict_do_update(index_elements=["dag_id", "asset_event_id"], set_={"run_pk": run_pk})
    )
