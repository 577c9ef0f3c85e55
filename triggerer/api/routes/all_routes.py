"""All routes below `/api/v1` that the description lists."""

from __future__ import annotations

from litestar import Router

from triggerer.api.routes import assets, changes, dags, drawings, logs, runs, service, watchers


def api_router() -> Router:
    """Return a new router. Each application needs one of its own."""
    return Router(
        "/api/v1",
        route_handlers=[
            assets.ROUTER,
            changes.ROUTER,
            dags.ROUTER,
            drawings.ROUTER,
            logs.ROUTER,
            runs.ROUTER,
            service.ROUTER,
            watchers.ROUTER,
        ],
    )
