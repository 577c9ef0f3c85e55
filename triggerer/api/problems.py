"""Turns errors into problem details (RFC 9457). A table maps each class of error to a status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

import orjson
import structlog
from litestar import Request, Response
from litestar.enums import ParamType
from litestar.exceptions import (
    HTTPException,
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
    SerializationException,
    ValidationException,
)
from litestar.routes import HTTPRoute

from triggerer import errors
from triggerer.errors import TriggererError
from triggerer.observability.redaction import redact_text

_log = structlog.get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
ERRORS_PAGE: Final = "/docs/errors"

STATUSES: Final[Mapping[type[TriggererError], int]] = {
    errors.TriggererError: 409,
    errors.ConfigurationError: 500,
    errors.DagError: 422,
    errors.AssetConflict: 409,
    errors.UnknownName: 404,
    errors.UnknownMessage: 404,
    errors.CursorRefused: 400,
    errors.MoveRefused: 409,
    errors.PluginError: 500,
    errors.BrokerError: 502,
    errors.BrokerUnavailable: 503,
    errors.StoreError: 500,
    errors.TransientStoreError: 503,
    errors.RowRefused: 422,
    errors.ParkedFull: 409,
    errors.LeaseLost: 409,
    errors.SparkError: 502,
    errors.RequestError: 400,
    errors.InternalError: 500,
    errors.BadRequest: 400,
    errors.SignInNeeded: 401,
    errors.RoleNeeded: 403,
    errors.NothingThere: 404,
    errors.MethodNotThere: 405,
    errors.KeyReused: 422,
    errors.BodyTooLarge: 413,
    errors.WrongMediaType: 415,
    errors.WrongHost: 421,
    errors.TooManyRequests: 429,
    errors.ServerBusy: 503,
    errors.ServiceAway: 503,
}
"""The status by class of error. A class that is missing here has the status of its nearest base class."""

_RETRY_AFTER_S: Final = 1
_NO_BODY: Final = "'data'"
"""Litestar's message for a request without a body."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The body of an answer that reports an error."""

    type: str
    """A path to the description of this kind of error."""
    title: str
    status: int
    detail: str
    hint: str | None
    """Advice for the user."""
    request_id: str
    """The id of the request, which is also in the log."""


def status_of(kind: type[TriggererError]) -> int:
    """Return the status of an answer for this class of error."""
    return next(STATUSES[base] for base in kind.__mro__ if base in STATUSES)


def problem_of(error: TriggererError, *, request_id: str, prefix: str = "") -> Problem:
    """Return the problem of one of our errors, with its secrets hidden."""
    kind = type(error)
    return Problem(
        type=f"{prefix}{ERRORS_PAGE}#{anchor_of(kind)}",
        title=_words(kind.__name__),
        status=status_of(kind),
        detail=redact_text(error.message),
        hint=None if error.hint is None else redact_text(error.hint),
        request_id=request_id,
    )


def headers_of(error: TriggererError) -> dict[str, str]:
    """Return the headers that the status of an error needs, such as `Retry-After`."""
    match status_of(type(error)):
        case 401:
            return {"WWW-Authenticate": "Bearer"}
        case 429 | 503:
            seconds = getattr(error, "retry_after_s", _RETRY_AFTER_S)
            return {"Retry-After": str(seconds)}
    return {}


def anchor_of(kind: type[TriggererError]) -> str:
    """Return the anchor of an error's section on the page of errors, such as `unknown-run` for `UnknownRun`."""
    return _words(kind.__name__).lower().replace(" ", "-")


def _words(name: str) -> str:
    first, *rest = re.findall(r"[A-Z][a-z]*", name)
    words = " ".join([first, *(word.lower() for word in rest)])
    return re.sub(r"\bdag\b", "DAG", words, flags=re.IGNORECASE)


def encoded(problem: Problem) -> bytes:
    """Return the problem as JSON."""
    return orjson.dumps(problem)


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the answer for an error of a handler or of Litestar. Litestar calls this for every error."""
    ours = error if isinstance(error, TriggererError) else _translated(error, request)
    headers = headers_of(ours)
    if isinstance(error, MethodNotAllowedException):
        headers["Allow"] = ", ".join(sorted(_methods_at(request)))
    problem = problem_of(
        ours, request_id=request.scope["state"].get("request_id", ""), prefix=_prefix(request)
    )
    return Response(
        encoded(problem), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )


def _methods_at(request: Request[Any, Any, Any]) -> set[str]:
    """Return the methods that the path accepts."""
    found: set[str] = set()
    for route in request.app.routes:
        pattern = re.sub(r"\\{[^/]+\\}", "[^/]+", re.escape(route.path_format))
        if isinstance(route, HTTPRoute) and re.fullmatch(pattern, request.scope["path"]):
            found.update(route.methods)
    return found


def _prefix(request: Request[Any, Any, Any]) -> str:
    return str(request.scope["state"].get("prefix", ""))


def _translated(error: Exception, request: Request[Any, Any, Any]) -> TriggererError:
    match error:
        case ValidationException():
            return errors.BadRequest(
                _details(error, request), hint="/api/v1/openapi.json describes every request"
            )
        case NotFoundException():
            return errors.NothingThere(
                "there is nothing at this path", hint="/api/v1/openapi.json lists the paths"
            )
        case MethodNotAllowedException():
            return errors.MethodNotThere("this path does not accept this method")
        case HTTPException(status_code=413):
            return errors.BodyTooLarge("the body is over the limit")
        case HTTPException(status_code=415):
            return errors.WrongMediaType(error.detail or "this type of body is not accepted")
        case InternalServerException(detail="client disconnected prematurely"):
            # Litestar has no exception class for a client that left early. Do not log this case, because any client
            # could fill the log.
            return errors.BadRequest("the client left before the end of its request")
        case HTTPException(__cause__=SerializationException() as cause):
            return errors.BadRequest(f"the body cannot be read: {cause}")
        case HTTPException(status_code=status) if status < 500:
            return errors.BadRequest(error.detail or "the request cannot be understood")
    _log.error("a request failed", error=repr(error), exc_info=error)
    return errors.InternalError("the API failed to answer; its log has the reason")


def _details(error: ValidationException, request: Request[Any, Any, Any]) -> str:
    """Return a sentence that says which parameter or field is wrong."""
    extra = error.extra
    if not isinstance(extra, list) or not extra:
        return str(error.detail)
    found = [_detail(one, request) for one in extra[:5] if isinstance(one, Mapping)]
    return "; ".join(found) or str(error.detail)


def _detail(one: Mapping[str, Any], request: Request[Any, Any, Any]) -> str:
    source = one.get("source", "body")
    key = str(one.get("key", "")).removeprefix("data").removeprefix(".")
    message = str(one.get("message"))
    if source == "body":
        if not key and message == _NO_BODY:
            return "the body is missing"
        return f"the body's {key!r}: {message}" if key else f"the body: {message}"
    name = key
    field = request.route_handler.parsed_fn_signature.parameters.get(key)
    if field is not None:
        # Show the request's parameter (`state`) instead of the handler's argument (`run_state`).
        name = getattr(field.kwarg_definition, "name", None) or key
        if values := _values_of(field.annotation):
            message += f" (one of {', '.join(values)})"
    place = "header" if source == ParamType.HEADER else "parameter"
    return f"the {place} {name!r}: {message}"


def _values_of(annotation: Any) -> list[str]:
    """Return the values that a parameter may have, or an empty list if the values are not fixed."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _values_of(part)]
