"""Signs a browser's user in (by API token, one-time link or OpenID Connect provider), and signs the user out."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import LINK, OIDC, Actor, Role
from triggerer.errors import SignInNeeded
from triggerer.operations.audit import Action, record
from triggerer.store.access.sessions import end_session, open_session, use_login
from triggerer.store.access.tokens import find_token


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The session of a browser that has just signed in."""

    name: str
    role: str
    secret: str = field(repr=False)
    """The value of the session's cookie. The store has only its digest."""


async def sign_in_by_token(session: AsyncSession, token: str, request_id: str) -> OpenedSession:
    """Open a session for the owner of an API token. The session ends early if the token expires or is revoked.

    Raises:
        SignInNeeded: The token is unknown, expired or revoked.
    """
    found = await find_token(session, token)
    if found is None:
        raise SignInNeeded(
            "the token is unknown, revoked or expired",
            hint="the file api-token in [core] home has the first token",
        )
    actor = Actor(found.name, Role(found.role), f"token:{found.id}", request_id)
    return await _open(session, actor, token_id=found.id)


async def sign_in_by_link(session: AsyncSession, code: str, request_id: str) -> OpenedSession:
    """Open a session with the code of a one-time link.

    Raises:
        SignInNeeded: The code was used already, has expired or never existed.
    """
    found = await use_login(session, code)
    if found is None:
        raise SignInNeeded(
            "this link was used, or is too old", hint="triggerer tokens login prints a new link"
        )
    name, role = found
    return await _open(session, Actor(name, Role(role), LINK, request_id))


async def sign_in_person(
    session: AsyncSession, name: str, role: str, request_id: str
) -> OpenedSession:
    """Open a session for a person whom the OpenID Connect provider has identified."""
    return await _open(session, Actor(name, Role(role), OIDC, request_id))


async def sign_out(session: AsyncSession, secret: str, request_id: str) -> None:
    """End a session. A repeat does nothing."""
    ended = await end_session(session, secret)
    if ended is not None:
        actor = Actor(ended.name, Role(ended.role), f"session:{ended.id}", request_id)
        await record(session, actor, Action.SESSION_END, ended.id)


async def _open(
    session: AsyncSession, actor: Actor, *, token_id: str | None = None
) -> OpenedSession:
    opened, secret = await open_session(
        session, name=actor.name, role=actor.role.value, token_id=token_id
    )
    after = {"role": opened.role, "expires_at": opened.expires_at.isoformat()}
    await record(session, actor, Action.SESSION_OPEN, opened.id, after=after)
    return OpenedSession(opened.name, opened.role, secret)
