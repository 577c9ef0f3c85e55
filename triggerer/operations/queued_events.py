"""Lists and deletes the events that wait for DAGs."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.errors import DagError, UnknownAsset, UnknownDag
from triggerer.operations.audit import Action, record
from triggerer.store.dags.listing import list_assets, list_dags
from triggerer.store.events import queued as queries
from triggerer.store.listing.views import QueuedEventView


async def list_queued_events(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: tuple[str, int, str] | None = None,
    dag: str | None = None,
    asset: str | None = None,
    state: str | None = None,
) -> list[QueuedEventView]:
    """Return the events that wait for DAGs: sorted by DAG id, and the oldest first for each DAG.

    Args:
        limit: The most events to return; 0 means all.
        after: The last entry of the previous page: its DAG id, event id and partition key ("" if it has no key).
        asset: The asset's name or URI.
        state: The state of the DAG: `active`, `paused` or `stale`.
    """
    return await queries.list_queued_events(
        session, limit=limit, after=after, dag=dag, asset=asset, state=state
    )


async def delete_queued_events(
    session: AsyncSession, actor: Actor, *, dag: str | None = None, asset: str | None = None
) -> int:
    """Delete the queued events of a DAG, of an asset, or of an asset for one DAG; return their number.

    No run will take these events, but the asset events themselves stay.

    Raises:
        UnknownDag: There is no such DAG.
        UnknownAsset: There is no such asset.
        DagError: Neither a DAG nor an asset is given.
    """
    if dag is None and asset is None:
        raise DagError("neither a DAG nor an asset is named", hint="that would be every queue")
    if dag is not None and not await list_dags(session, dag=dag, limit=1):
        raise UnknownDag(dag)
    if asset is not None and not await list_assets(session, asset=asset, limit=1):
        raise UnknownAsset(asset)
    deleted = await queries.delete_queued_events(session, dag=dag, asset=asset)
    if deleted:
        named = {"dag": dag, "asset": asset, "entries": deleted}
        subject = dag or asset or ""
        await record(session, actor, Action.QUEUE_DELETE, subject, before=named)
    return deleted
