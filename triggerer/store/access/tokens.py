"""Creates, lists, revokes and recognizes the tokens of the HTTP API."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.access.secrets import digest_of, id_in, new_token
from triggerer.store.database.transactions import database_now
from triggerer.store.listing.filters import limited
from triggerer.store.listing.views import TokenView, view_of
from triggerer.store.schema.models import ApiSession, ApiToken

_LAST_USE_PRECISION: Final = timedelta(minutes=5)
"""The stored time of a token's last use is replaced only if it is at least this old, so most requests write nothing."""


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token that is valid now."""

    id: str
    name: str
    role: str
    is_use_stale: bool
    """True if no last use is stored, or it is older than `_LAST_USE_PRECISION`. The caller then calls `mark_used`."""


async def create_token(
    session: AsyncSession, *, name: str, role: str, expires_at: datetime | None = None
) -> tuple[TokenView, str]:
    """Store a new token; return its view, and the token itself, which cannot be read again."""
    token_id, token = new_token()
    row = ApiToken(
        id=token_id,
        name=name,
        role=role,
        digest=digest_of(token),
        created_at=await database_now(session),
        expires_at=expires_at,
    )
    session.add(row)
    await session.flush()
    return view_of(row, TokenView), token


async def list_tokens(
    session: AsyncSession, *, limit: int = 100, token_id: str | None = None
) -> list[TokenView]:
    """Return the tokens, newest first, including revoked ones."""
    query = select(ApiToken).order_by(ApiToken.created_at.desc(), ApiToken.id)
    if token_id is not None:
        query = query.where(ApiToken.id == token_id)
    return [view_of(row, TokenView) for row in await session.scalars(limited(query, limit))]


async def revoke_token(session: AsyncSession, token_id: str) -> tuple[TokenView, int] | None:
    """Revoke a token and end the sessions that it opened.

    Returns:
        The token as it was before this call, and the number of ended sessions; None if the token is unknown.
    """
    row = await session.get(ApiToken, token_id, with_for_update=True)
    if row is None:
        return None
    before = view_of(row, TokenView)
    if row.revoked_at is None:
        row.revoked_at = await database_now(session)
    opened = delete(ApiSession).where(ApiSession.token_id == token_id).returning(ApiSession.digest)
    return before, len((await session.scalars(opened)).all())


async def find_token(session: AsyncSession, token: str) -> KnownToken | None:
    """Return the token if it is known, and neither revoked nor expired."""
    token_id = id_in(token)
    row = None if token_id is None else await session.get(ApiToken, token_id)
    if row is None or not hmac.compare_digest(row.digest, digest_of(token)):
        return None
    now = await database_now(session)
    if not _is_valid(row, now):
        return None
    is_stale = row.last_used_at is None or now - row.last_used_at >= _LAST_USE_PRECISION
    return KnownToken(row.id, row.name, row.role, is_stale)


async def is_token_valid(session: AsyncSession, token_id: str) -> bool:
    """Return whether the token with this id is neither revoked nor expired."""
    row = await session.get(ApiToken, token_id)
    return row is not None and _is_valid(row, await database_now(session))


def _is_valid(row: ApiToken, now: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


async def mark_used(session: AsyncSession, token_id: str) -> None:
    """Store that the token was used now."""
    now = await database_now(session)
    await session.execute(update(ApiToken).where(ApiToken.id == token_id).values(last_used_at=now))


async def count_tokens(session: AsyncSession) -> int:
    """Return the number of all tokens, including revoked and expired tokens."""
    return int(await session.scalar(select(func.count()).select_from(ApiToken)) or 0)
