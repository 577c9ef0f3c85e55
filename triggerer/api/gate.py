"""The gate is the first code that a request meets. It checks the host and the path, and adds headers to the answer."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

import structlog
from litestar.exceptions import LitestarException

from triggerer.api.problems import MEDIA_TYPE, encoded, headers_of, problem_of
from triggerer.errors import BadRequest, TriggererError, WrongHost

_log = structlog.get_logger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
SLASH: Final = "\x1f"
"""Replaces a slash inside one part of a path, such as an asset's name. The client wrote the slash as `%2F`."""
_GREEDY: Final = re.compile(r"^(/api/v1(?:/dags/[^/]+)?/assets/queuedEvent)/(.+)$")
"""Paths whose last part is a URI. Clients need not write the slashes of this URI as `%2F`."""
_HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{0,5}))?")
"""A name or an address in brackets, then perhaps a port. Litestar fails on a `Host` with a port that is no number."""
_HIGHEST_PORT: Final = 65_535
_REQUEST_ID: Final = re.compile(r"[\w.\-]{1,64}")
_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; worker-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
SECURITY_HEADERS: Final = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_CACHE: Final = b"private, no-cache"


class Gate:
    """Wraps the application: refuses requests for other hosts, decodes paths, and adds headers to the answers.

    If one of our errors ends a streamed answer, the gate logs it in one line. The client receives an incomplete answer.

    Args:
        hosts: The names that are accepted in `Host`, besides the names of the loopback interface.
        behind_proxy: True to believe the `X-Forwarded-` headers.
    """

    def __init__(self, app: App, *, hosts: Collection[str], behind_proxy: bool) -> None:
        self._app = app
        self._hosts = frozenset((*map(str.lower, hosts), *LOOPBACK_NAMES))
        self._behind_proxy = behind_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request. Other protocols are refused."""
        if scope["type"] != "http":
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _request_id(headers.get(b"x-request-id"))
        scope["state"] = {"request_id": request_id, "prefix": ""}
        answer = _Answer(scope, send, request_id, headers.get(b"if-none-match"))
        try:
            if self._behind_proxy:
                _apply_forwarded(scope, headers)
            self._check_host(headers)
            scope["path"] = _readable(scope.get("raw_path") or scope["path"].encode())
        except TriggererError as error:
            await _refuse(answer.send, error, request_id)
            return
        try:
            await self._app(scope, receive, answer.send)
        except LitestarException as error:
            cause = _cause_of(error)
            if cause is None:
                raise
            # The answer has no end, so uvicorn closes the connection, and the client notices.
            _log.warning("an answer was broken off", path=part(scope["path"]), error=str(cause))

    def _check_host(self, headers: MutableMapping[bytes, str]) -> None:
        """Check that the request's `Host` is an allowed name.

        Otherwise a hostile page could make its own host name resolve to this machine, and read this API's answers (DNS
        rebinding).

        Raises:
            WrongHost: The name is not allowed.
        """
        host = headers.get(b"host", "").lower()
        found = _HOST.fullmatch(host)
        is_known = (
            found is not None
            and (found[1] or found[2]) in self._hosts
            and int(found[3] or 0) <= _HIGHEST_PORT
        )
        if not is_known:
            raise WrongHost(
                f"this API does not answer for the host {host!r}",
                hint="add the name to allowed_hosts in [api]",
            )


def _request_id(given: str | None) -> str:
    return given if given and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex[:16]


def _apply_forwarded(scope: Scope, headers: MutableMapping[bytes, str]) -> None:
    """Apply the scheme, the host and the path's prefix of the `X-Forwarded-` headers to the request.

    Each proxy of a chain may append a value to a header. The first value counts. It comes from the proxy next to the
    client, if this proxy replaces the values that the client sent.
    """

    def first(name: bytes) -> str:
        return headers.get(name, "").partition(",")[0].strip()

    if (scheme := first(b"x-forwarded-proto")) in ("http", "https"):
        scope["scheme"] = scheme
    if host := first(b"x-forwarded-host"):
        headers[b"host"] = host
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [*others, (b"host", host.encode("latin-1"))]
    prefix = first(b"x-forwarded-prefix").rstrip("/")
    if re.fullmatch(r"(/[\w.~-]+)+", prefix):
        scope["state"]["prefix"] = prefix


def _readable(raw: bytes) -> str:
    """Return the percent-decoded path. A slash that the client wrote as `%2F` is no separator, and becomes `SLASH`.

    Raises:
        BadRequest: The path is not UTF-8, or contains a character that cannot be printed.
    """
    path = raw.partition(b"?")[0].decode("latin-1")
    if greedy := _GREEDY.match(path):
        path = f"{greedy[1]}/{greedy[2].replace('/', '%2F')}"
    try:
        parts = [unquote(part, errors="strict") for part in path.split("/")]
    except UnicodeDecodeError as error:
        raise BadRequest("the path is not UTF-8") from error
    if any(not part.isprintable() for part in parts):
        raise BadRequest("the path contains a character that cannot be printed")
    return "/".join(part.replace("/", SLASH) for part in parts)


def part(value: str) -> str:
    """Return one part of a request's path, with slashes instead of `SLASH`."""
    return value.replace(SLASH, "/")


def _cause_of(error: LitestarException) -> TriggererError | None:
    """Return the error of ours that ended a streamed answer, or None if another error ended it."""
    cause = error.__cause__
    while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    return cause if isinstance(cause, TriggererError) else None


async def _refuse(send: Send, error: TriggererError, request_id: str) -> None:
    problem = problem_of(error, request_id=request_id)
    headers = [(name.lower().encode(), value.encode()) for name, value in headers_of(error).items()]
    headers.append((b"content-type", MEDIA_TYPE.encode()))
    body = encoded(problem)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Answer:
    """Adds headers to an answer. If `If-None-Match` has the answer's ETag, sends 304 without a body instead."""

    def __init__(self, scope: Scope, send: Send, request_id: str, known_tags: str | None) -> None:
        self._is_read = scope["method"] in ("GET", "HEAD")
        self._send = send
        self._request_id = request_id
        self._known_tags = known_tags
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            present = {name.lower() for name, _ in headers}
            headers += [header for header in SECURITY_HEADERS if header[0] not in present]
            headers.append((b"x-request-id", self._request_id.encode()))
            if b"cache-control" not in present:
                headers.append((b"cache-control", _NO_CACHE))
            message["headers"] = headers
            # The ETag is a header that is computed from the body, so hold the headers back until
            # the body comes. A streamed answer has no `content-length`: it gets no ETag, and its
            # headers are sent at once.
            is_whole = b"content-length" in present
            if self._is_read and is_whole and message["status"] == 200 and b"etag" not in present:
                self._start = message
                return
            await self._send(message)
        elif self._start is not None:
            start, self._start = self._start, None
            if not message.get("more_body"):
                start, message = self._tagged(start, message)
            await self._send(start)
            await self._send(message)
        else:
            await self._send(message)

    def _tagged(self, start: Message, message: Message) -> tuple[Message, Message]:
        tag = f'"{hashlib.sha256(message.get("body", b"")).hexdigest()[:24]}"'
        headers = [*start["headers"], (b"etag", tag.encode())]
        known = [one.strip().removeprefix("W/") for one in (self._known_tags or "").split(",")]
        if tag not in known and "*" not in known:
            return {**start, "headers": headers}, message
        unsent = (b"content-length", b"content-type")
        kept = [header for header in headers if header[0].lower() not in unsent]
        return (
            {**start, "status": 304, "headers": kept},
            {"type": "http.response.body", "body": b""},
        )
