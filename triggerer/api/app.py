"""Assembles the API: the gate, the guard, the routes, and the answers to errors."""

from __future__ import annotations

from typing import Any, Final, cast

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler

from triggerer.api.access.authorizing import Connection, Guard
from triggerer.api.access.roles import Access
from triggerer.api.context import ApiContext
from triggerer.api.gate import App, Gate
from triggerer.api.openapi import description, query_parameters
from triggerer.api.problems import answer_error
from triggerer.api.responses import JsonResponse
from triggerer.api.routes import page, signing_in, status
from triggerer.api.routes.airflow import airflow_router
from triggerer.api.routes.all_routes import api_router
from triggerer.api.routing import public
from triggerer.errors import BadRequest
from triggerer.nearest import ending

MOST_BODY_BYTES: Final = 1024 * 1024


def make_app(context: ApiContext) -> App:
    """Return the ASGI application."""
    settings = context.settings.api
    return Gate(
        cast("App", make_routes(context)),
        hosts=(*settings.allowed_hosts, settings.host),
        behind_proxy=settings.behind_proxy,
    )


def make_routes(context: ApiContext) -> Litestar:
    """Return the routes with their guard, without the gate."""

    def api() -> ApiContext:
        return context

    def access(request: Request[Any, Any, Any]) -> Access:
        found: Access = request.scope["state"]["access"]
        return found

    return Litestar(
        [
            api_router(),
            airflow_router(),
            openapi_json,
            signing_in.ROUTER,
            status.ROUTER,
            page.ROUTER,
        ],
        dependencies={
            "api": Provide(api, sync_to_thread=False),
            "access": Provide(access, sync_to_thread=False),
        },
        guards=[Guard(context), refuse_unknown_parameters],
        exception_handlers={Exception: answer_error},
        request_class=_ApiRequest,
        response_class=JsonResponse,
        openapi_config=None,
        request_max_body_size=MOST_BODY_BYTES,
        logging_config=None,
        debug=False,
    )


class _ApiRequest(Request[Any, Any, Any]):
    async def json(self) -> Any:
        """Return the body's JSON.

        Raises:
            BadRequest: The body is nested too deeply, or the name of a field is not UTF-8. Litestar would answer 500.
        """
        try:
            return await super().json()
        except (RecursionError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body cannot be read: {error}") from error


def refuse_unknown_parameters(connection: Connection, handler: BaseRouteHandler) -> None:
    """Refuse a query parameter that a route below `/api/v1` does not know. The name is probably mistyped.

    Raises:
        BadRequest: A parameter is unknown. The message suggests the nearest known name.
    """
    given = connection.query_params.keys()
    path = connection.scope.get("path_template", "")
    if not given or not str(path).startswith("/api/v1/"):
        return
    known = query_parameters().get((str(connection.scope.get("method")), str(path)))
    if known is not None and (unknown := sorted(given - known)):
        raise BadRequest(
            f"there is no parameter {unknown[0]!r} here{ending(unknown[0], known)}",
            hint="/api/v1/openapi.json describes every request",
        )


@public("/api/v1/openapi.json")
async def openapi_json() -> Response[bytes]:
    """Describe all routes."""
    return Response(description(), media_type="application/json")
