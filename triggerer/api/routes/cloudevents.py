"""Receives CloudEvents (structured, binary and batch) from senders with a token, or from named hooks with a signature.

Source: "HTTP Protocol Binding" and "HTTP 1.1 Web Hooks for Event Delivery" at github.com/cloudevents/spec.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Any, Final

import orjson
from litestar import Request, Response, Router, post, route
from litestar.params import QueryParameter

from triggerer.abc import BrokerMessage
from triggerer.api.access.authorizing import PUBLIC
from triggerer.api.access.roles import Access
from triggerer.api.context import ApiContext
from triggerer.api.gate import part
from triggerer.api.hiding import without_payloads
from triggerer.api.paging import Page, whole
from triggerer.api.parameters import Api, Caller, InPath, request_id
from triggerer.api.responses import JsonResponse
from triggerer.api.routing import answers_repeats
from triggerer.config.references import resolve
from triggerer.domain.actors import Actor, Role
from triggerer.errors import BadRequest, ConfigurationError, SignInNeeded
from triggerer.operations.emitting import Emission, emit_all
from triggerer.pluginkit.cloudevents import read_cloudevents
from triggerer.store.listing.views import AssetEventView

_BATCH_BYTES: Final = 8 * 1024 * 1024
_MOST_EVENTS: Final = 1_000
_RATE_PER_MINUTE: Final = 3_000
_SIGNATURES: Final = ("x-signature-256", "x-hub-signature-256")
AnyRequest = Request[Any, Any, Any]


@post(
    "/events",
    opt={"role": "operator"},
    status_code=201,
    responses=answers_repeats(Page[AssetEventView]),
    request_max_body_size=_BATCH_BYTES,
)
async def receive(
    api: Api,
    access: Caller,
    request: AnyRequest,
    asset: Annotated[
        str, QueryParameter(description="The name or URI of the asset that gets the events.")
    ],
) -> Response[Page[AssetEventView]]:
    """Record CloudEvents as events of an asset. The body is one event (binary or structured mode) or a batch.

    `source` and `id` together identify an event. If the asset already has the event, the answer contains the recorded
    event. The status is 201 if at least one event is new, otherwise 200.
    """
    return await _record(api, request, access.actor(), asset, access)


@post(
    "/events/{hook:str}",
    opt={"role": PUBLIC},
    status_code=201,
    responses=answers_repeats(Page[AssetEventView]),
    request_max_body_size=_BATCH_BYTES,
)
async def receive_from_hook(
    api: Api, request: AnyRequest, hook: InPath
) -> Response[Page[AssetEventView]]:
    """Record the CloudEvents of a hook that `[api.hooks]` names.

    The header `X-Signature-256` (or `X-Hub-Signature-256`) is `sha256=`, followed by the body's HMAC-SHA256 in hex.
    """
    name = part(hook)
    settings = api.settings.api.hooks.get(name)
    body = await request.body()
    key = "-" if settings is None else _secret(api, name, settings.secret)
    expected = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
    given = next((request.headers[one] for one in _SIGNATURES if one in request.headers), "")
    is_right = hmac.compare_digest(f"sha256={expected}".encode(), given.encode("utf-8", "replace"))
    if settings is None or not is_right:
        # An unknown hook gets this answer too, so that the answer does not tell which names exist.
        raise SignInNeeded(
            "the signature does not match, or there is no such hook",
            hint="[api.hooks.<name>] secret is the key of the HMAC",
        )
    actor = Actor(f"hook {name}", Role.OPERATOR, f"hook:{name}", request_id(request))
    access = Access(actor.name, "operator", actor.via, True, actor.request_id or "")
    return await _record(api, request, actor, settings.asset, access)


@route("/events", http_method=["OPTIONS"], opt={"role": PUBLIC}, status_code=200)
async def handshake(request: AnyRequest) -> Response[None]:
    """Agree to receive events: the handshake in the specification of web hooks."""
    return _agreed(request)


@route("/events/{hook:str}", http_method=["OPTIONS"], opt={"role": PUBLIC}, status_code=200)
async def handshake_of_hook(request: AnyRequest, hook: InPath) -> Response[None]:
    """Agree to receive the events of a hook: the handshake in the specification of web hooks.

    An unknown hook gets this answer too, so that the answer does not tell which names exist.
    """
    return _agreed(request)


def _agreed(request: AnyRequest) -> Response[None]:
    headers = {"Allow": "POST, OPTIONS"}
    if origin := request.headers.get("webhook-request-origin"):
        headers |= {
            "WebHook-Allowed-Origin": origin,
            "WebHook-Allowed-Rate": str(_RATE_PER_MINUTE),
        }
    return Response(None, status_code=200, headers=headers)


async def _record(
    api: ApiContext, request: AnyRequest, actor: Actor, asset: str, access: Access
) -> Response[Page[AssetEventView]]:
    events = _events_in(await request.body(), dict(request.headers))
    emissions = [
        Emission(event, _idempotency_key(event["source"], event["id"])) for event in events
    ]
    async with api.use.changing() as session:
        recorded = await emit_all(session, actor, asset, emissions)
    are_new = any(is_new for _, is_new in recorded)
    stored = [without_payloads(access, event) for event, _ in recorded]
    return JsonResponse(whole(stored), status_code=201 if are_new else 200)


def _idempotency_key(source: str, event_id: str) -> str:
    """Return the key of a CloudEvent. Two events have one key only if both `source` and `id` are equal.

    A source may contain slashes. The slashes of the id are escaped, so the key's last slash separates source and id.
    """
    escaped = event_id.replace("%", "%25").replace("/", "%2F")
    return f"ce/{source}/{escaped}"


def _events_in(body: bytes, headers: dict[str, str]) -> list[dict[str, Any]]:
    """Return the events of a request.

    Raises:
        BadRequest: The request has no event, or too many.
    """
    attributes: dict[str, str | bytes] = dict(headers)
    message = BrokerMessage(value=body, attributes=attributes)
    try:
        found = read_cloudevents(message)
        for event in found:
            if not isinstance(event["source"], str) or not isinstance(event["id"], str):
                raise ValueError("source and id of a CloudEvent are texts")
    except (ValueError, orjson.JSONDecodeError) as error:
        raise BadRequest(
            f"the request has no CloudEvent: {error}",
            hint="send the headers ce-id, ce-source, ce-type and ce-specversion, or"
            " application/cloudevents+json, or a batch",
        ) from error
    if not 1 <= len(found) <= _MOST_EVENTS:
        raise BadRequest(f"a batch has 1 to {_MOST_EVENTS:,} events, not {len(found):,}")
    return found


def _secret(api: ApiContext, name: str, written: str) -> str:
    """Return the secret of a hook.

    Raises:
        ConfigurationError: The secret cannot be read, or is empty. With an empty secret, anybody could sign.
    """
    file = api.settings.file
    setting = f"api.hooks.{name}.secret"
    base = file.parent if file else api.settings.core.home
    found = str(resolve(written, setting, api.settings.environ, base))
    if not found:
        raise ConfigurationError(f"{setting} is empty", hint=f"set a secret at {written}")
    return found


ROUTER = Router(
    "/",
    route_handlers=[handshake, handshake_of_hook, receive, receive_from_hook],
    tags=["CloudEvents"],
)
