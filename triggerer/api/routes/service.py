"""Routes about the service itself: its problems, processes, settings, tokens and audit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from litestar import Router
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from triggerer.api.gate import part
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of, whole
from triggerer.api.parameters import Api, Caller, InPath
from triggerer.api.routing import creates, deletes, reads
from triggerer.domain.actors import Role
from triggerer.errors import BadRequest
from triggerer.operations.access.tokens import NewToken, create_token, revoke_token
from triggerer.operations.reading.service_settings import (
    ServiceSettingView,
    list_service_settings,
)
from triggerer.store.access.tokens import list_tokens
from triggerer.store.listing.overview import Overview, read_overview
from triggerer.store.listing.pages import AUDIT
from triggerer.store.listing.views import AuditView, InstanceView, TokenView
from triggerer.store.streams.listing import list_instances


class TokenOrder(Struct, forbid_unknown_fields=True, frozen=True):
    """The token to make."""

    role: Literal["viewer", "operator", "admin"]
    name: Annotated[str, Meta(max_length=200)] = ""
    expires_at: datetime | None = None
    """The token's end. None: the token does not expire."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The person or program that sent a request."""

    name: str
    role: str
    via: str
    """The credential that authorized the request: `token:<id>`, `session:<id>` or `run:<dag_id>/<run_id>`."""
    sees_payloads: bool


@reads("/overview")
async def overview(api: Api) -> Overview:
    """Show the problems that need a person."""
    async with api.use.reading() as session:
        return await read_overview(session)


@reads("/instances")
async def instances(api: Api) -> Page[InstanceView]:
    """List the processes of the service."""
    async with api.use.reading() as session:
        return whole(await list_instances(session))


@reads("/config", role="admin")
async def config(api: Api) -> Page[ServiceSettingView]:
    """List every setting of the service's processes, and its origin. Secrets are hidden."""
    async with api.use.reading() as session:
        return whole(await list_service_settings(session, api.settings))


@reads("/audit", role="admin")
async def audit(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    actor: Annotated[
        str | None, QueryParameter(description="Only changes of this person or token.")
    ] = None,
    action: Annotated[
        str | None, QueryParameter(description="`run.cancel`, or `run` for all changes of runs.")
    ] = None,
    subject: Annotated[
        str | None, QueryParameter(description="The subject, or its first word, such as a DAG id.")
    ] = None,
) -> Page[AuditView]:
    """List the changes that people and programs made, newest first."""
    return await page_of(
        api,
        AUDIT,
        limit=limit,
        cursor=cursor,
        counted=counted,
        actor=actor,
        action=action,
        subject=subject,
    )


@reads("/tokens", role="admin")
async def tokens(api: Api, limit: Limit = 100) -> Page[TokenView]:
    """List the tokens with their names and roles, newest first. The secret of a token is not stored."""
    async with api.use.reading() as session:
        return whole(await list_tokens(session, limit=limit))


@creates("/tokens", role="admin", status=201)
async def new_token(api: Api, access: Caller, data: JSONBody[TokenOrder]) -> NewToken:
    """Make a token. Only this answer shows its secret."""
    if data.expires_at is not None and data.expires_at.tzinfo is None:
        raise BadRequest("expires_at has no time zone", hint="end it with Z for UTC")
    async with api.use.changing() as session:
        return await create_token(
            session,
            access.actor(),
            role=Role(data.role),
            name=data.name or f"made by {access.name}",
            expires_at=data.expires_at,
        )


@deletes("/tokens/{token_id:str}", role="admin")
async def revoke(api: Api, access: Caller, token_id: InPath) -> TokenView:
    """Revoke a token, and end the sessions that it opened."""
    async with api.use.changing() as session:
        return await revoke_token(session, access.actor(), part(token_id))


@reads("/whoami", by_run=True)
async def whoami(access: Caller) -> Sender:
    """Show the name and role of the sender of this request."""
    return Sender(access.name, access.role, access.via, access.sees_payloads)


ROUTER = Router(
    "/",
    route_handlers=[overview, instances, config, audit, tokens, new_token, revoke, whoami],
    tags=["Service"],
)
