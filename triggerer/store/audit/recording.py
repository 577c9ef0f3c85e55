"""Writes rows of the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.observability.redaction import redact
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Audit


async def insert_audit(
    session: AsyncSession,
    actor: Actor,
    action: str,
    subject: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Record a change, in the transaction that makes the change. Secrets in `before` and `after` are hidden."""
    # Leave out `before` or `after` if it is None. Otherwise SQLAlchemy would store the JSON text "null", not NULL.
    values = {
        name: redact("", value)
        for name, value in (("before", before), ("after", after))
        if value is not None
    }
    session.add(
        Audit(
            at=await database_now(session),
            actor=actor.name,
            role=actor.role.value,
            via=actor.via,
            action=action,
            subject=subject,
            request_id=actor.request_id,
            **values,
        )
    )
    await session.flush()
