"""Refuses changes that a page of another origin requests with the user's cookie."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection

from triggerer.errors import RoleNeeded, WrongMediaType


def refuse_other_origins(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Refuse a request unless our own page sent it. Call this for each change that a cookie authorizes.

    The headers `Sec-Fetch-Site` and `Origin` name the sender; a page cannot forge them. As a second defence, the media
    type must be JSON, because an HTML form cannot send JSON.

    Raises:
        RoleNeeded: A page of another origin sent the request, or the headers do not name the origin.
        WrongMediaType: The media type is not JSON.
    """
    headers = connection.headers
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    is_ours = site == "same-origin" if site is not None else _is_own(origin, headers.get("host"))
    if not is_ours or (origin is not None and not _is_own(origin, headers.get("host"))):
        raise RoleNeeded(
            "a page of another origin asked for this change",
            hint="programs send a token in place of the cookie",
        )
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongMediaType(
            "a change that a cookie authorizes must be application/json", hint="set Content-Type"
        )


def _is_own(origin: str | None, host: str | None) -> bool:
    # A browser sends an origin as scheme://host:port, without a path. A program may send any text.
    return origin is not None and host is not None and origin.partition("://")[2] == host.lower()
