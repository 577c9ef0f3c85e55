"""The guard of all routes: checks the token or session of a request, the sender's role, and the rate of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import structlog
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from triggerer.api.access.csrf import refuse_other_origins
from triggerer.api.access.rates import Rates
from triggerer.api.access.roles import ORDER, Access, RoleName, RunIdentity
from triggerer.errors import RoleNeeded, ServerBusy, SignInNeeded, StoreError, TransientStoreError
from triggerer.store.access.run_tokens import find_run_token
from triggerer.store.access.secrets import RUN_PREFIX
from triggerer.store.access.sessions import find_session, is_session_valid
from triggerer.store.access.tokens import find_token, is_token_valid, mark_used

if TYPE_CHECKING:
    from triggerer.api.context import ApiContext

_log = structlog.get_logger(__name__)

SECURE_COOKIE: Final = "__Host-triggerer"
COOKIE: Final = "triggerer"
"""The name of the session's cookie over plain HTTP. Over HTTPS it gets the prefix `__Host-`."""
PUBLIC: Final = "public"
RUN: Final = "run"
"""The option that marks a route which also accepts run tokens."""

_MARK_USED_S: Final = 0.25
"""A request waits no longer than this until the store has recorded the use of its token."""

Connection = ASGIConnection[Any, Any, Any, Any]


class Guard:
    """Accepts or refuses each request before its handler is called."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._rates = Rates(context.settings.api.rate_limit)

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Store the request's `Access` in its scope.

        Raises:
            SignInNeeded, RoleNeeded, WrongMediaType, TooManyRequests: The request is refused.
        """
        # A test checks that each route names its role. Otherwise only an administrator can use the route.
        needed = handler.opt.get("role", ORDER[-1])
        if needed == PUBLIC:
            return
        access = await self._recognize(connection)
        self._rates.take(access.via, is_change=is_unsafe(connection))
        if access.run is not None:
            if not handler.opt.get(RUN):
                raise RoleNeeded(
                    "the token of a run is not accepted here",
                    hint="it can read its own run, and emit events of the DAG's outlets",
                )
        elif not access.may(needed):
            raise RoleNeeded(
                f"the request needs the role {needed}, and {access.name!r} is {access.role}",
                hint=f"triggerer tokens create --role {needed} prints a token with this role",
            )
        connection.scope["state"]["access"] = access

    async def _recognize(self, connection: Connection) -> Access:
        header = connection.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() == "bearer" and (access := await self._by_token(connection, token)):
                return access
            raise SignInNeeded(
                "the token is unknown, revoked or expired",
                hint="triggerer tokens create --role ROLE prints a new token",
            )
        cookie = connection.cookies.get(cookie_name(connection))
        if cookie is None:
            raise SignInNeeded(
                "the request needs a token",
                hint="send Authorization: Bearer with the token in the file api-token in [core] home,"
                " or sign in with a link from `triggerer tokens login`",
            )
        async with self._context.use.reading() as session:
            found = await find_session(session, cookie)
        if found is None:
            raise SignInNeeded("the session has ended", hint="sign in again")
        if is_unsafe(connection):
            refuse_other_origins(connection)
        return self._access(connection, found.name, found.role, f"session:{found.id}")

    async def _by_token(self, connection: Connection, token: str) -> Access | None:
        if token.startswith(RUN_PREFIX):
            return await self._by_run_token(connection, token.strip())
        async with self._context.use.reading() as session:
            found = await find_token(session, token.strip())
        if found is None:
            return None
        if found.is_use_stale:
            try:
                with anyio.move_on_after(_MARK_USED_S):
                    async with self._context.use.changing() as session:
                        await mark_used(session, found.id)
            except (TransientStoreError, ServerBusy) as error:
                # The time of a token's last use is only information for people, so the request succeeds without it.
                _log.debug("the use of a token was not stored", error=str(error))
        return self._access(connection, found.name, found.role, f"token:{found.id}")

    async def _by_run_token(self, connection: Connection, token: str) -> Access | None:
        key = await self._context.service_key()
        async with self._context.use.reading() as session:
            found = await find_run_token(session, key, token)
        if found is None:
            return None
        name = f"{found.dag_id}/{found.run_id}"
        return Access(
            name=name,
            role="viewer",
            via=f"run:{name}",
            sees_payloads=True,
            request_id=connection.scope["state"].get("request_id", ""),
            run=RunIdentity(found.dag_id, found.run_id, token),
        )

    def _access(self, connection: Connection, name: str, role: str, via: str) -> Access:
        known = cast("RoleName", role)
        lowest = cast("RoleName", self._context.settings.api.payloads)
        return Access(
            name=name,
            role=known,
            via=via,
            sees_payloads=ORDER.index(known) >= ORDER.index(lowest),
            request_id=connection.scope["state"].get("request_id", ""),
        )


async def is_access_valid(context: ApiContext, access: Access) -> bool:
    """Return whether the client's token or session is still valid. Called at intervals during a streamed answer.

    True if the database does not answer, so that an outage ends no streamed answer.
    """
    kind, _, found_id = access.via.partition(":")
    try:
        key = b"" if access.run is None else await context.service_key()
        async with context.use.reading() as session:
            if access.run is not None:
                return await find_run_token(session, key, access.run.token) is not None
            check = is_session_valid if kind == "session" else is_token_valid
            return await check(session, found_id)
    except (StoreError, ServerBusy):
        return True


def is_unsafe(connection: Connection) -> bool:
    """Return whether the method of the request can change something."""
    return connection.scope.get("method") not in ("GET", "HEAD", "OPTIONS")


def cookie_name(connection: Connection) -> str:
    """Return the name of the session's cookie on this connection."""
    return SECURE_COOKIE if connection.scope.get("scheme") == "https" else COOKIE
