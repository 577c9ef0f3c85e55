"""Creates and revokes API tokens, and creates codes for links that sign a browser in once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor, Role
from triggerer.errors import UnknownToken
from triggerer.operations.audit import Action, record
from triggerer.store.access import tokens
from triggerer.store.access.sessions import create_login
from triggerer.store.listing.views import TokenView


@dataclass(frozen=True, slots=True)
class NewToken:
    """An API token that was just made. `token`, its secret text, cannot be read again."""

    id: str
    name: str
    role: str
    expires_at: datetime | None
    token: str


async def create_token(
    session: AsyncSession,
    actor: Actor,
    *,
    role: Role,
    name: str,
    expires_at: datetime | None = None,
) -> NewToken:
    """Create a token. Only its SHA-256 is stored."""
    view, token = await tokens.create_token(
        session, name=name, role=role.value, expires_at=expires_at
    )
    after = {
        "name": name,
        "role": role.value,
        "expires_at": None if expires_at is None else expires_at.isoformat(),
    }
    await record(session, actor, Action.TOKEN_CREATE, view.id, after=after)
    return NewToken(view.id, view.name, view.role, view.expires_at, token)


async def revoke_token(session: AsyncSession, actor: Actor, token_id: str) -> TokenView:
    """Revoke a token, and end the sessions that it opened. A repeat does nothing.

    Raises:
        UnknownToken: There is no such token.
    """
    found = await tokens.revoke_token(session, token_id)
    if found is None:
        raise UnknownToken(token_id)
    before, ended = found
    if before.revoked_at is None:
        named = {"name": before.name, "role": before.role}
        after = {"sessions_ended": ended}
        await record(session, actor, Action.TOKEN_REVOKE, token_id, before=named, after=after)
    return (await tokens.list_tokens(session, token_id=token_id))[0]


async def create_login_code(session: AsyncSession, actor: Actor, *, role: Role) -> str:
    """Create the code of a link that signs a browser in once, within 15 minutes."""
    code = await create_login(session, name=actor.name, role=role.value)
    await record(session, actor, Action.LOGIN_CREATE, actor.name, after={"role": role.value})
    return code
