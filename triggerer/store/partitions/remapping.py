"""Puts events that wait for partition keys back into the DAG's queue, where the scheduler divides them again.

There are two uses:

- After a change of the DAG, its waiting events may belong to other partition keys.
- An operator deletes some waiting events. All waiting events of the DAG go back into the queue first, and the chosen
  events are deleted there.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.transactions import insert_into
from triggerer.store.schema.models import (
    DagPartition,
    DagPartitionEvent,
    DagPartitionPart,
    QueuedAssetEvent,
)
from triggerer.store.schema.models.dags import NEVER


async def return_to_queue(session: AsyncSession, dag_ids: Sequence[str]) -> set[str]:
    """Put the events that wait for keys of these DAGs back into the queue, to be divided again.

    Events that runs have taken stay with the runs. The caller must have locked the DAGs' rows, and must wake the
    scheduler.

    Returns:
        The DAGs that had waiting events.
    """
    if not dag_ids:
        return set()
    waits = (DagPartitionEvent.dag_id.in_(dag_ids), DagPartitionEvent.run_pk.is_(None))
    entry = (DagPartitionEvent.dag_id, DagPartitionEvent.asset_event_id, DagPartitionEvent.asset_id)
    await session.execute(
        insert_into(session, QueuedAssetEvent)
        .from_select(
            ["dag_id", "asset_event_id", "asset_id"], select(*entry).where(*waits).distinct()
        )
        .on_conflict_do_update(index_elements=["dag_id", "asset_event_id"], set_={"run_pk": None})
    )
    gone = await session.scalars(
        delete(DagPartitionEvent).where(*waits).returning(DagPartitionEvent.dag_id)
    )
    found = set(gone)
    if not found:
        return found
    await session.execute(delete(DagPartitionPart).where(DagPartitionPart.dag_id.in_(dag_ids)))
    await session.execute(
        update(DagPartition)
        .where(DagPartition.dag_id.in_(dag_ids), DagPartition.due_at < NEVER)
        .values(due_at=NEVER, noted_at=None)
    )
    return found
