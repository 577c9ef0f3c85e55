"""Reads the audit for the commands and the API."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.listing.filters import limited
from triggerer.store.listing.paging import Count, count_rows
from triggerer.store.listing.views import AuditView, view_of
from triggerer.store.schema.models import Audit


async def list_audit(
    session: AsyncSession,
    *,
    limit: int = 100,
    after: int | None = None,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
) -> list[AuditView]:
    """Return changes, newest first.

    Args:
        after: Only older changes, whose ids are lower than this id.
        action: An action such as `run.cancel`, or a kind of object such as `run`, for all actions on runs.
        subject: The subject, or its first words. For instance, a DAG id also finds the changes of the DAG's runs.
    """
    query = select(Audit).where(*_audit(actor, action, subject)).order_by(Audit.id.desc())
    if after is not None:
        query = query.where(Audit.id < after)
    return [view_of(row, AuditView) for row in await session.scalars(limited(query, limit))]


async def count_audit(
    session: AsyncSession,
    *,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
) -> Count:
    """Count the changes that `list_audit` returns with these filters."""
    return await count_rows(session, select(Audit.id).where(*_audit(actor, action, subject)))


def _audit(actor: str | None, action: str | None, subject: str | None) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = []
    if actor is not None:
        wanted.append(Audit.actor == actor)
    if action is not None:
        is_kind = Audit.action.startswith(f"{action}.", autoescape=True)
        wanted.append(is_kind | (Audit.action == action))
    if subject is not None:
        begins = Audit.subject.startswith(f"{subject} ", autoescape=True)
        wanted.append(begins | (Audit.subject == subject))
    return wanted
