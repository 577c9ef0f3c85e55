"""Routes that list, show, replay and discard parked messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from litestar import Response, Router
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Counted, Cursor, Limit, Page, page_of
from triggerer.api.parameters import Api, AssetFilter, Caller, DagFilter, InPath
from triggerer.api.routing import creates, reads
from triggerer.errors import BadRequest, NothingThere
from triggerer.operations.parked import ReplayResult, discard_messages, replay_messages, show_parked
from triggerer.store.listing.pages import PARKED
from triggerer.store.listing.views import ParkedMessageView, ParkedView
from triggerer.store.watchers.parked_listing import parked_body

_MOST_CHOSEN = 5_000


class Choice(Struct, forbid_unknown_fields=True, frozen=True):
    """Chooses messages: give exactly one of `ids`, `watcher` and `all`."""

    ids: list[int] = []
    """The ids of the messages, at most 5,000."""
    watcher: str | None = None
    """The watcher as ASSET/NAME. The text after the last slash is the name."""
    all: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The number of messages that the request changed."""

    count: int


@reads("/")
async def parked(
    api: Api,
    limit: Limit = 100,
    cursor: Cursor = None,
    counted: Counted = False,
    asset: AssetFilter = None,
    dag: DagFilter = None,
    watcher_name: Annotated[
        str | None,
        QueryParameter(name="watcher", description="Only messages of watchers with this name."),
    ] = None,
    parked_state: Annotated[
        Literal["kept", "set_aside"] | None,
        QueryParameter(
            name="state",
            description="kept: stored, and delivered later; set_aside: parked until a person decides.",
        ),
    ] = None,
) -> Page[ParkedView]:
    """List stored and parked messages in the order of storing."""
    return await page_of(
        api,
        PARKED,
        limit=limit,
        cursor=cursor,
        counted=counted,
        known={"dag": dag, "asset": asset, "watcher": watcher_name},
        asset=asset,
        dag=dag,
        watcher=watcher_name,
        state=parked_state,
    )


@reads("/{message_id:str}")
async def message(api: Api, access: Caller, message_id: InPath) -> ParkedMessageView:
    """Show a parked message with its traceback and content."""
    number = _number(message_id)
    async with api.use.reading() as session:
        return without_payloads(access, await show_parked(session, number))


@reads("/{message_id:str}/body", media_type="application/octet-stream")
async def body(api: Api, access: Caller, message_id: InPath) -> Response[bytes]:
    """Download the content of a parked message, as the producer of its stream has stored it (`dump_event`)."""
    access.require_payloads()
    number = _number(message_id)
    async with api.use.reading() as session:
        found = await parked_body(session, number)
    if found is None:
        raise _no_message(message_id)
    headers = {"Content-Disposition": f'attachment; filename="parked-{number}.bin"'}
    return Response(found, media_type="application/octet-stream", headers=headers)


@creates("/replay")
async def replay(api: Api, access: Caller, data: JSONBody[Choice]) -> ReplayResult:
    """Deliver parked messages to their watchers again."""
    chosen = _chosen(data)
    async with api.use.changing() as session:
        return await replay_messages(session, access.actor(), **chosen)


@creates("/discard")
async def discard(api: Api, access: Caller, data: JSONBody[Choice]) -> Done:
    """Delete messages for good."""
    chosen = _chosen(data)
    async with api.use.changing() as session:
        return Done(await discard_messages(session, access.actor(), **chosen))


def _chosen(data: Choice) -> dict[str, Any]:
    if sum((bool(data.ids), data.watcher is not None, data.all)) != 1:
        raise BadRequest("name the messages by one of ids, watcher and all")
    if len(data.ids) > _MOST_CHOSEN or any(not 0 <= one < 2**63 for one in data.ids):
        raise BadRequest(f"ids are at most {_MOST_CHOSEN} numbers of messages")
    if data.watcher is None:
        return {"ids": data.ids}
    asset, slash, name = data.watcher.rpartition("/")
    if not slash:
        raise BadRequest(f"{data.watcher!r} is not ASSET/NAME")
    return {"asset": asset, "watcher": name}


def _number(message_id: str) -> int:
    if not message_id.isascii() or not message_id.isdecimal() or len(message_id) > 18:
        raise _no_message(message_id)
    return int(message_id)


def _no_message(message_id: str) -> NothingThere:
    return NothingThere(
        f"no message {part(message_id)!r} is parked", hint="triggerer watchers parked list"
    )


ROUTER = Router(
    "/parked", route_handlers=[parked, message, body, replay, discard], tags=["Parked messages"]
)
