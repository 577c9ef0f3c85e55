"""Writes rows of the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.observability.redaction import redact
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Audit

Values: TypeAlias = Mapping[str, Any] | None


async def insert_audit(
    session: AsyncSession,
    actor: Actor,
    action: str,
    subject: str,
    changes: Sequence[tuple[Values, Values]],
) -> None:
    """Record changes of one object, in the transaction that makes the changes.

    Args:
        changes: The old and the new values of each change. Secrets in them are hidden.
    """
    if not changes:
        return
    now = await database_now(session)
    rows = [
        {
            "at": now,
            "actor": actor.name,
            "role": actor.role.value,
            "via": actor.via,
            "action": action,
            "subject": subject,
            "request_id": actor.request_id,
            # Leave out values that are None. Otherwise SQLAlchemy would store the JSON text "null", not NULL.
            **{
                name: redact("", values)
                for name, values in (("before", before), ("after", after))
                if values is not None
            },
        }
        for before, after in changes
    ]
    await session.execute(insert(Audit), rows)
