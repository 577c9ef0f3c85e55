"""The sessions of signed-in browsers, and the one-time links that open a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.access.secrets import digest_of, new_secret
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import ApiLogin, ApiSession, ApiToken

SESSION_LENGTH: Final = timedelta(hours=12)
LOGIN_LENGTH: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class KnownSession:
    """A session that is valid now."""

    id: str
    """The first 12 characters of the session's digest. The audit names the session by these characters."""
    name: str
    role: str
    expires_at: datetime


async def open_session(
    session: AsyncSession, *, name: str, role: str, token_id: str | None = None
) -> tuple[KnownSession, str]:
    """Store a new session; return it and the secret for its cookie. Expired sessions are deleted."""
    now = await database_now(session)
    await session.execute(delete(ApiSession).where(ApiSession.expires_at <= now))
    secret = new_secret()
    row = ApiSession(
        digest=digest_of(secret),
        name=name,
        role=role,
        token_id=token_id,
        created_at=now,
        expires_at=now + SESSION_LENGTH,
    )
    session.add(row)
    await session.flush()
    return _known(row), secret


async def find_session(session: AsyncSession, secret: str) -> KnownSession | None:
    """Return the session with this cookie secret; None if the session, or the token that opened it, is not valid."""
    return await _find(session, ApiSession.digest == digest_of(secret))


async def is_session_valid(session: AsyncSession, session_id: str) -> bool:
    """Return whether the session with this id, and the token that opened it, are still valid."""
    return await _find(session, ApiSession.digest.startswith(session_id)) is not None


async def _find(session: AsyncSession, which: ColumnElement[bool]) -> KnownSession | None:
    query = (
        select(ApiSession, ApiToken.revoked_at, ApiToken.expires_at)
        .outerjoin(ApiToken, ApiToken.id == ApiSession.token_id)
        .where(which)
    )
    found = (await session.execute(query.limit(1))).one_or_none()
    if found is None:
        return None
    row, revoked_at, token_expires_at = found
    now = await database_now(session)
    if row.expires_at <= now or revoked_at is not None:
        return None
    if token_expires_at is not None and token_expires_at <= now:
        return None
    return _known(row)


def _known(row: ApiSession) -> KnownSession:
    return KnownSession(row.digest[:12], row.name, row.role, row.expires_at)


async def end_session(session: AsyncSession, secret: str) -> KnownSession | None:
    """Delete the session with this cookie secret, and return it; None if there was no valid session."""
    found = await find_session(session, secret)
    await session.execute(delete(ApiSession).where(ApiSession.digest == digest_of(secret)))
    return found


async def create_login(session: AsyncSession, *, name: str, role: str) -> str:
    """Store a one-time login that expires after `LOGIN_LENGTH`; return the code for its link."""
    now = await database_now(session)
    await session.execute(delete(ApiLogin).where(ApiLogin.expires_at <= now))
    code = new_secret()
    session.add(
        ApiLogin(digest=digest_of(code), name=name, role=role, expires_at=now + LOGIN_LENGTH)
    )
    await session.flush()
    return code


async def use_login(session: AsyncSession, code: str) -> tuple[str, str] | None:
    """Delete a one-time login and return its name and role; None if it was used, has expired or never existed."""
    now = await database_now(session)
    used = (
        delete(ApiLogin)
        .where(ApiLogin.digest == digest_of(code))
        .returning(ApiLogin.name, ApiLogin.role, ApiLogin.expires_at)
    )
    found = (await session.execute(used)).one_or_none()
    return None if found is None or found.expires_at <= now else (found.name, found.role)
