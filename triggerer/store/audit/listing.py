"""Reads the audit for the commands and the API."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.listing.filters import limited
from triggerer.store.listing.views import AuditView, view_of
from triggerer.store.schema.models import Audit


async def list_audit(
    session: AsyncSession,
    *,
    limit: int = 100,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
) -> list[AuditView]:
    """Return changes, newest first.

    Args:
        action: An action such as `run.cancel`, or the kind before its dot.
        subject: The subject, or its first word, such as a DAG id.
    """
    query = select(Audit).order_by(Audit.id.desc())
    if actor is not None:
        query = query.where(Audit.actor == actor)
    if action is not None:
        is_kind = Audit.action.startswith(f"{action}.", autoescape=True)
        query = query.where(is_kind | (Audit.action == action))
    if subject is not None:
        begins = Audit.subject.startswith(f"{subject} ", autoescape=True)
        query = query.where(begins | (Audit.subject == subject))
    return [view_of(row, AuditView) for row in await session.scalars(limited(query, limit))]
