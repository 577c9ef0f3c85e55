"""What handlers ask for: the context, the sender, and query parameters that several lists share."""

from __future__ import annotations

from typing import Annotated

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
State = Annotated[str | None, Parameter(query="state", description="Only in this state.")]
