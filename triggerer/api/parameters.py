"""The parameters that several handlers take: the context, the sender, and filters of lists."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Request
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, QueryParameter, SkipValidation
from msgspec import Struct, json

from triggerer.api.access.roles import Access
from triggerer.api.context import ApiContext

Api = NamedDependency[SkipValidation[ApiContext]]
Caller = NamedDependency[SkipValidation[Access]]
"""The sender of the request."""
InPath = FromPath[str]
"""A part of the path, with `SLASH` instead of slashes; see `triggerer.api.gate.part`."""

AssetFilter = Annotated[
    str | None,
    QueryParameter(name="asset", description="Only items that belong to this asset (name or URI)."),
]
DagFilter = Annotated[
    str | None, QueryParameter(name="dag", description="Only items that belong to this DAG.")
]
DagState = Annotated[
    Literal["active", "paused", "stale"] | None,
    QueryParameter(
        name="state", description="Only DAGs in this state, or only items of such DAGs."
    ),
]
Prefix = Annotated[
    str | None, QueryParameter(name="q", max_length=500, description="The beginning of the name.")
]
IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=200,
        description="A repeat with this key and the same body answers with the first result.",
    ),
]


def request_id(request: Request[Any, Any, Any]) -> str:
    """Return the request's id, which is also in the answer's header and in the log."""
    return str(request.scope["state"].get("request_id", ""))


def as_bytes(path: str, body: Struct) -> bytes:
    """Return the path and body of a POST request as bytes. Requests with equal values give equal bytes."""
    return path.encode() + b"\0" + json.encode(body, order="deterministic")
