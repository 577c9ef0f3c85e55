"""Records the events that tasks emit, in the transaction that writes the end of the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempts import EmittedEvent, RunOrder
from triggerer.errors import AssetConflict, RowRefused
from triggerer.store.queries.execution.aliases import ensure_aliases
from triggerer.store.queries.execution.results import AttemptUpdate
from triggerer.store.recording.encoding import MAX_KEY_BYTES
from triggerer.store.recording.recorder import NewAssetEvent, ensure_asset, record_events


@dataclass(frozen=True, slots=True)
class Emission:
    """An event, and the task that it comes from."""

    order: RunOrder
    task_id: str
    event: EmittedEvent

    @classmethod
    def all_of(cls, update: AttemptUpdate) -> list[Emission]:
        """The events that an attempt's tasks left, in order."""
        return [
            cls(update.order, task.task_id, event) for task in update.tasks for event in task.events
        ]

    @property
    def idempotency_key(self) -> str:
        """The same for each attempt of the run: a repeat of the task emits nothing twice."""
        key = "/".join((self.order.dag_id, self.order.run_id, self.task_id, self.event.asset_uri))
        # Each of the four may be long; a URI alone may be longer than a key can be.
        encoded = key.encode()
        return key if len(encoded) <= MAX_KEY_BYTES else f"sha256:{sha256(encoded).hexdigest()}"


async def record_emissions(session: AsyncSession, emissions: Sequence[Emission]) -> None:
    """Record events that tasks emitted, and queue them for the DAGs that wait.

    Raises:
        RowRefused: One cannot be stored, or its asset's name or URI belongs to another asset.
    """
    if not emissions:
        return
    identities = {(one.event.asset_name, one.event.asset_uri) for one in emissions}
    try:
        # Sorted, so that two transactions that create the same assets cannot deadlock.
        assets = {
            (name, uri): (await ensure_asset(session, name=name, uri=uri)).id
            for name, uri in sorted(identities)
        }
    except AssetConflict as error:
        raise RowRefused(str(error)) from error
    aliases = await ensure_aliases(
        session, sorted({name for one in emissions for name in one.event.aliases})
    )
    await record_events(
        session,
        [
            NewAssetEvent(
                asset_id=assets[one.event.asset_name, one.event.asset_uri],
                extra=one.event.extra,
                idempotency_key=one.idempotency_key,
                ordinal=one.event.ordinal,
                source_dag_id=one.order.dag_id,
                source_run_id=one.order.run_id,
                source_task_id=one.task_id,
                alias_ids=tuple(aliases[name] for name in one.event.aliases),
            )
            for one in emissions
        ],
    )
