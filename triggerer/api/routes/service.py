"""The service itself: is anything wrong, its processes, settings, tokens and audit."""

from __future__ import annotations

from litestar import Router

from triggerer.api.access.roles import Access
from triggerer.api.paging import Cursor, Limit, Page
from triggerer.api.parameters import Api, Caller
from triggerer.api.routing import reads
from triggerer.operations.configuration import SettingView, list_settings
from triggerer.store.access.tokens import list_tokens
from triggerer.store.listing.overview import Overview, read_overview
from triggerer.store.listing.views import InstanceView, TokenView
from triggerer.store.streams.listing import list_instances


@reads("/overview")
async def overview(api: Api) -> Overview:
    """Show whether anything needs a person, and what."""
    async with api.use.reading() as session:
        return await read_overview(session)


@reads("/instances")
async def instances(api: Api) -> Page[InstanceView]:
    """List the processes of the service."""
    async with api.use.reading() as session:
        return Page(await list_instances(session), None)


@reads("/config", role="admin")
async def config(api: Api) -> Page[SettingView]:
    """List every setting and its origin. Secrets are hidden."""
    return Page(list_settings(api.settings), None)


@reads("/tokens", role="admin")
async def tokens(api: Api, limit: Limit = 100, cursor: Cursor = None) -> Page[TokenView]:
    """List the tokens, newest first. The tokens themselves are not stored."""
    async with api.use.reading() as session:
        return Page(await list_tokens(session, limit=limit), None)


@reads("/whoami")
async def whoami(access: Caller) -> Access:
    """Show the name and role of the sender of this request."""
    return access


ROUTER = Router(
    "/",
    route_handlers=[overview, instances, config, tokens, whoami],
    tags=["Service"],
)
