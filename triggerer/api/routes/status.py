"""Routes for probes and metrics. The service's own process answers most of these requests."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

from anyio import CapacityLimiter, to_thread
from litestar import Response, Router

from triggerer.api.parameters import Api
from triggerer.api.routing import public, reads
from triggerer.operations.health import read_health
from triggerer.operations.status import Status, ask_service


@public("/health", include_in_schema=False)
async def health(api: Api) -> Response[dict[str, Any]]:
    """Show each part of the service and its latest heartbeat; 503 if a part is missing or silent.

    The route needs no token, so the answer names no host.
    """
    found = await read_health(api.use.reading)
    parts = {
        part.kind: {
            "status": "healthy" if part.is_healthy else "unhealthy",
            "running": part.running,
            "heartbeat_at": _written(part.heartbeat_at),
        }
        for part in found.parts
    }
    database = "healthy" if found.database is None else "unhealthy"
    return Response(
        {
            "status": "healthy" if found.is_healthy else "unhealthy",
            "database": database,
            "parts": parts,
        },
        status_code=200 if found.is_healthy else 503,
    )


@public("/livez", include_in_schema=False)
async def livez(api: Api) -> Response[bytes]:
    """Ask the service's process whether its event loop works, and return the answer."""
    return _passed_on(await _ask(api, "/livez"))


@public("/readyz", include_in_schema=False)
async def readyz(api: Api) -> Response[bytes]:
    """Ask the service's process whether it has started and has its leases, and return the answer."""
    return _passed_on(await _ask(api, "/readyz"))


@reads("/metrics", include_in_schema=False)
async def metrics(api: Api) -> Response[bytes]:
    """Return the metrics of the service, in the format of Prometheus."""
    return _passed_on(await _ask(api, "/metrics"))


async def _ask(api: Api, target: str) -> Status:
    return await to_thread.run_sync(ask_service, api.settings.core.home, target, limiter=_limiter())


@cache
def _limiter() -> CapacityLimiter:
    # Probes need no token, so anybody can send many. Four threads answer all probes, and the threads for other requests
    # stay free.
    return CapacityLimiter(4)


def _passed_on(answer: Status) -> Response[bytes]:
    return Response(answer.body, media_type=answer.content_type, status_code=answer.status)


def _written(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


ROUTER = Router("/", route_handlers=[health, livez, readyz, metrics])
