"""Reads and writes the states that the producers of streams store, such as a position in the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.text.json_text import load_json
from triggerer.domain.watchers.stream_states import StateChange
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, parameter_rows
from triggerer.store.schema.models import StreamState, Trigger
from triggerer.store.streams.fences import valid_fences

# Stores states. EXISTS leaves out streams whose last watcher was deleted after the state was submitted.
SAVE: Final = Statement(
    "INSERT INTO stream_state (stream_digest, epoch, value) "
    "SELECT g.digest, g.epoch, g.value FROM {STATES} g "
    "WHERE EXISTS (SELECT 1 FROM trigger t WHERE t.stream_digest = g.digest) "
    "ON CONFLICT (stream_digest) DO UPDATE SET epoch = excluded.epoch, value = excluded.value "
    "WHERE stream_state.epoch <= excluded.epoch",
    STATES=parameter_rows(digest="text", epoch="bigint", value="text"),
)


def write_states(changes: Sequence[StateChange]) -> Script[frozenset[Fence]]:
    """Store these states, each only if its fence (lease) holds. Return the fences that do not hold.

    Args:
        changes: At most one for each stream.
    """
    fences = {change.fence for change in changes}
    valid = yield from valid_fences(fences)
    yield from save_states([change for change in changes if change.fence in valid])
    return frozenset(fences - valid)


def save_states(changes: Sequence[StateChange]) -> Script[None]:
    """Store these states, at most one for each stream. The caller must have checked the leases in this transaction."""
    rows = [
        (change.fence.stream_digest, change.fence.epoch, change.value.decode())
        for change in changes
    ]
    if rows:
        yield SAVE(rows=ParameterRows(sorted(rows)))


async def load_state(session: AsyncSession, stream_digest: str) -> Any:
    """Return the state that a stream's producer last stored, decoded from JSON; None if there is no state."""
    query = select(StreamState.value).where(StreamState.stream_digest == stream_digest)
    text = await session.scalar(query)
    return None if text is None else load_json(text)


async def drop_states_without_watchers(session: AsyncSession) -> None:
    """Delete the states of streams without triggers."""
    used = exists().where(Trigger.stream_digest == StreamState.stream_digest)
    await session.execute(delete(StreamState).where(~used.correlate(StreamState)))
