"""The OpenAPI description of all routes, made from their types and docstrings."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any, Final

import orjson
from litestar import Litestar
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from triggerer.api.problems import MEDIA_TYPE
from triggerer.api.routes.airflow import airflow_router
from triggerer.api.routes.all_routes import api_router

_REASONS: Final = {
    "400": "A parameter, a header or the body is malformed.",
    "401": "No token is given, or the token is unknown, revoked or expired.",
    "403": "The role is not enough, or a page of another origin sent the request.",
    "404": "There is no such object.",
    "405": "The path does not accept this method.",
    "409": "The state of the object does not allow the request.",
    "413": "The body is over the limit.",
    "415": "The body's media type is not accepted.",
    "421": "The host is not this API's.",
    "422": "The request is understood, and its content refused.",
    "429": "The token makes too many requests. See Retry-After.",
    "500": "A mistake in the API, or a wrong setting.",
    "502": "The broker or Spark refused.",
    "503": "The API or the database cannot answer now. See Retry-After.",
}
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "hint", "request_id"],
    "properties": {
        "type": {"type": "string", "description": "Where this kind of error is described."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "hint": {"type": ["string", "null"], "description": "What to do next."},
        "request_id": {"type": "string", "description": "The log has it too."},
    },
}


@cache
def description() -> bytes:
    """Return the description as JSON."""
    # Litestar describes only a whole application, and adds routes that serve the description. The API must not have
    # these routes. So describe a second application, which serves nothing.
    config = OpenAPIConfig(
        title="triggerer",
        version=version("triggerer"),
        description="Broker messages become asset events, and asset events become runs. Lists answer"
        ' {"items", "next_cursor"}; errors are problem details (RFC 9457); instants are ISO 8601 in UTC.',
        use_handler_docstrings=True,
    )
    described = Litestar(
        [api_router(), airflow_router()],
        dependencies={name: _nothing() for name in ("api", "access")},
        openapi_config=config,
        logging_config=None,
    )
    return orjson.dumps(completed(described.openapi_schema.to_schema()))


@cache
def query_parameters() -> dict[tuple[str, str], frozenset[str]]:
    """Return the names of the query parameters by method and path template."""
    paths = orjson.loads(description())["paths"]
    return {
        (method.upper(), path): frozenset(
            one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"
        )
        for path, operations in paths.items()
        for method, operation in operations.items()
    }


def _nothing() -> Provide:
    return Provide(lambda: None, sync_to_thread=False)


def completed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the ways to sign in, and with the errors and the status 304 of each route."""
    schema = orjson.loads(orjson.dumps(schema, default=str))
    components = schema.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = _PROBLEM
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "trg_<id>_<secret>"},
        "session": {"type": "apiKey", "in": "cookie", "name": "triggerer"},
    }
    schema["security"] = [{"token": []}, {"session": []}]
    answer = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path in schema["paths"].values():
        for operation in path.values():
            if not isinstance(operation, dict):
                continue
            responses = operation["responses"]
            for status, reason in _REASONS.items():
                responses[status] = {"description": reason, "content": answer}
            responses.setdefault("304", {"description": "Nothing changed since this ETag."})
    return schema
