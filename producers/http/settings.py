"""The settings of an HTTP connection, checked before anything connects.

This module is imported only when a connection is opened: pydantic would slow down the parsing of DAG files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urljoin, urlsplit

from pydantic import BeforeValidator

from triggerer.errors import ConfigurationError
from triggerer.pluginkit.connections import (
    ConnectionSettings,
    OptionalText,
    Positive,
    PositiveSeconds,
)

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The characters that the name of a header can have (RFC 9110, section 5.6.2)."""


def _switch(value: Any) -> Any:
    """Convert "true" and "false", which an environment variable may contain, and return other values unchanged."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings(ConnectionSettings):
    """`[connections.<id>]` of a server. Every field is an optional key of that section."""

    optional: ClassVar[str | None] = "http"
    examples: ClassVar[Mapping[str, str]] = {"base_url": "https://api.example.com/v1/"}

    base_url: OptionalText = None
    """The URL to which URLs without a scheme are joined. If `base_url` is set, `headers`, `params` and `token` are sent
    only to the origin of `base_url`."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """The headers to send with each request."""
    params: dict[str, str] = field(default_factory=dict, repr=False)
    """Added to the query of each request, for servers that expect an API key in the query."""
    token: OptionalText = field(default=None, repr=False)
    """A token, which is sent as `Authorization: Bearer …`."""
    verify: Annotated[bool | str, BeforeValidator(_switch)] = True
    """Whether the server's certificate is verified. A string is the path of a file with the authorities to trust."""
    timeout_s: PositiveSeconds = 30.0
    """The time for one request, from connecting to the last byte of the answer, redirects included."""
    max_bytes: Positive = 16 << 20
    """The most bytes of an answer, after decompression."""

    def check(self, where: str) -> None:
        if self.base_url is not None and not is_absolute(self.base_url):
            raise ConfigurationError(
                f"base_url in {where} must begin with http:// or https:// and name a host",
                hint=f"for example: {self.examples['base_url']}",
            )
        if self.token and any(name.lower() == "authorization" for name in self.headers):
            raise ConfigurationError(f"{where} has a token and an Authorization header: give one")
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name):
                raise ConfigurationError(
                    f"{name!r} in headers of {where} is not a valid header name"
                )
            _check_sendable(value, f"header {name!r} in {where}")
        _check_sendable(self.token or "", f"token in {where}")

    def url_of(self, url: str) -> str:
        """Return the complete URL for a trigger's URL.

        Raises:
            ConfigurationError: The URL has no scheme, and there is no `base_url`.
        """
        if is_absolute(url):
            return url
        if self.base_url is None:
            raise ConfigurationError(
                f"the URL {url!r} has no scheme and host, and its connection no base_url",
                hint=f"base_url = {self.examples['base_url']!r}",
            )
        return urljoin(self.base_url, url)

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the headers for a URL; empty for a foreign origin, which must not get the server's secrets."""
        if not self._is_ours(url):
            return {}
        bearer = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return self.headers | bearer

    def params_for(self, url: str) -> dict[str, str]:
        """Return the query parameters for a URL; empty for a foreign origin."""
        return self.params if self._is_ours(url) else {}

    def _is_ours(self, url: str) -> bool:
        return self.base_url is None or origin_of(url) == origin_of(self.base_url)


def _check_sendable(value: str, what: str) -> None:
    """Refuse a value that cannot be sent in a header, without showing it: it may be a secret.

    Raises:
        ConfigurationError: The value contains a character that is not printable ASCII, or has spaces around it.
    """
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ConfigurationError(
            f"{what} cannot be sent",
            hint="use printable ASCII without line ends, and no spaces at either end",
        )


def is_absolute(url: str) -> bool:
    """Whether the URL has a scheme and a host."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or default
