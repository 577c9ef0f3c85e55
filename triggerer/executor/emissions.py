"""Records the events that tasks emit, in the transaction that stores the end of the task."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.assets import Asset
from triggerer.domain.attempts import EmittedEvent, RunOrder
from triggerer.errors import AssetConflict, RowRefused
from triggerer.store.events.aliases import ensure_aliases
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.encoding import MAX_KEY_BYTES
from triggerer.store.events.undeclared_assets import ensure_assets
from triggerer.store.runs.results import AttemptUpdate


async def record_emitted(session: AsyncSession, updates: Sequence[AttemptUpdate]) -> None:
    """Record the events in these updates, and queue the events for the DAGs that are scheduled on them.

    Raises:
        RowRefused: An event cannot be stored, or its asset's name or URI belongs to another asset.
    """
    emitted = [
        (update.order, task.task_id, event)
        for update in updates
        for task in update.tasks
        for event in task.events
    ]
    if not emitted:
        return
    declared = {
        (name, uri): Asset(name=name, uri=uri)
        for name, uri in {(event.asset_name, event.asset_uri) for _, _, event in emitted}
    }
    try:
        stored = await ensure_assets(session, declared.values())
    except AssetConflict as error:
        raise RowRefused(str(error)) from error
    assets = {identity: stored[asset].id for identity, asset in declared.items()}
    aliases = await ensure_aliases(
        session, sorted({name for _, _, event in emitted for name in event.aliases})
    )
    await record_events(
        session,
        [
            NewAssetEvent(
                asset_id=assets[event.asset_name, event.asset_uri],
                extra=event.extra,
                idempotency_key=_idempotency_key(order, task_id, event),
                ordinal=event.ordinal,
                partition_key=event.partition_key,
                source_dag_id=order.dag_id,
                source_run_id=order.run_id,
                source_task_id=task_id,
                alias_ids=tuple(aliases[name] for name in event.aliases),
            )
            for order, task_id, event in emitted
        ],
    )


def _idempotency_key(order: RunOrder, task_id: str, event: EmittedEvent) -> str:
    """Return the key of an event. The key is equal in all attempts of the run, so a repeated task emits no event twice.

    The key changes when the task is cleared, because a cleared task must emit its events again.
    """
    if cleared := order.repeat.cleared.get(task_id, 0):
        task_id = f"{task_id}#{cleared}"
    key = "/".join((order.dag_id, order.run_id, task_id, event.asset_uri))
    # A URI alone may exceed the limit of a key.
    encoded = key.encode()
    return key if len(encoded) <= MAX_KEY_BYTES else f"sha256:{sha256(encoded).hexdigest()}"
