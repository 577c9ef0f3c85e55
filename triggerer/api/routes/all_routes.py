"""All routes below `/api/v1` that the description lists."""

from __future__ import annotations

from litestar import Router

from triggerer.api.routes import (
    assets,
    backfills,
    changes,
    cloudevents,
    dags,
    drawings,
    finding,
    logs,
    parked,
    queues,
    runs,
    service,
    watchers,
)


def api_router() -> Router:
    """Return a new router. Two applications cannot share a router."""
    return Router(
        "/api/v1",
        route_handlers=[
            assets.ROUTER,
            backfills.ROUTER,
            changes.ROUTER,
            cloudevents.ROUTER,
            dags.ROUTER,
            drawings.ROUTER,
            finding.ROUTER,
            logs.ROUTER,
            parked.ROUTER,
            queues.ROUTER,
            runs.ROUTER,
            service.ROUTER,
            watchers.ROUTER,
        ],
    )
