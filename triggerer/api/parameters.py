"""What handlers ask for: the context, the sender, and query parameters that several lists share."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar.params import Dependency, Parameter

from triggerer.api.access.roles import Access
from triggerer.api.context import ApiContext

Api = Annotated[ApiContext, Dependency(skip_validation=True)]
Caller = Annotated[Access, Dependency(skip_validation=True)]
"""The sender of the request."""

AssetFilter = Annotated[
    str | None, Parameter(query="asset", description="Only of the asset with this name or URI.")
]
DagFilter = Annotated[str | None, Parameter(query="dag", description="Only of this DAG.")]
DagState = Annotated[
    Literal["active", "paused", "stale"] | None,
    Parameter(query="state", description="Only of DAGs in this state."),
]
IdempotencyKey = Annotated[
    str | None,
    Parameter(
        header="Idempotency-Key",
        max_length=200,
        description="A repeat with this key and the same body answers with the first result.",
    ),
]
