"""Fetches a URL with a conditional GET. Follows redirects, and limits the time and the size of the answer."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import anyio
import httpx
from anyio import to_thread

from producers.http.errors import CAUGHT, raise_for_status, read_date, shown, translate
from producers.http.settings import HttpSettings, origin_of
from triggerer.errors import BrokerRefused, ConfigurationError
from triggerer.pluginkit.guarding import guarded

_MOST_REDIRECTS: Final = 5
_KEPT_HEADERS: Final = ("content-type", "etag", "last-modified", "date")
_SETTLED_AFTER: Final = timedelta(seconds=60)
"""A `Last-Modified` is used only if it is this much older than the answer.

The header counts whole seconds. If the content changes twice within one second, both versions have the same header, and
the server would answer "not modified" for the second version. Source: RFC 9110, section 8.8.2.2; RFC 2616, section
13.3.3, for the minute.
"""


@dataclass(frozen=True, slots=True)
class Validators:
    """The `ETag` and `Last-Modified` of an answer. If the next request sends them, the server can answer 304.

    They are not sent with a request for another URL or another query.
    """

    url: str
    etag: str | None = None
    last_modified: str | None = None

    def headers_for(self, url: str) -> dict[str, str]:
        if url != self.url:
            return {}
        found = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for a URL. `body` is None if the content has not changed (304) or is empty (204)."""

    body: bytes | None
    headers: Mapping[str, str]
    validators: Validators
    is_empty: bool = False
    """Whether the server has no content (204)."""


class Fetcher:
    """Fetches from one server; the owner calls `aclose`."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._client: httpx.AsyncClient | None = None

    async def fetch(
        self, url: str, *, params: Mapping[str, Any] | None = None, known: Validators | None = None
    ) -> Answer:
        """Send a GET request, and follow its redirects.

        Args:
            params: Added to the URL's query.
            known: The validators of the last answer.
        Raises:
            ConfigurationError: The file with the certificates (`verify`), or the environment's proxy, cannot be used.
            BrokerRefused: A repeat would fail too.
            BrokerUnavailable: A repeat may succeed; `TryLater` if the server says when.
        Cancellation: Nothing was changed.
        """
        if self._client is None:
            self._client = await self._open()
        what = f"GET {shown(url)}"
        return await guarded(
            self._fetch(self._client, _with_query(url, params), what, known),
            what,
            translate=translate,
            catch=CAUGHT,
        )

    async def _open(self) -> httpx.AsyncClient:
        # httpx logs each URL at INFO, with its query, which may contain secrets.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # Load the certificates in a thread, because reading more than a hundred of them would block the event loop.
        context = await to_thread.run_sync(_ssl_context, self._settings.verify)
        try:
            return httpx.AsyncClient(verify=context, timeout=self._settings.timeout_s)
        except (httpx.InvalidURL, ImportError, ValueError) as error:
            # The arguments were checked before, so only the environment's proxy can be wrong.
            raise ConfigurationError(
                f"the proxy that the environment names cannot be used: {error}",
                hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY: http://host:port",
            ) from error

    async def _fetch(
        self, client: httpx.AsyncClient, url: str, what: str, known: Validators | None
    ) -> Answer:
        asked, may_send_secrets = url, True
        with anyio.fail_after(self._settings.timeout_s):
            for _ in range(_MOST_REDIRECTS + 1):
                headers = {"Accept": "application/json, */*;q=0.5"}
                requested = url
                if may_send_secrets:
                    headers |= self._settings.headers_for(url)
                    requested = _with_query(url, self._settings.params_for(url))
                headers |= {} if known is None else known.headers_for(asked)
                async with client.stream("GET", requested, headers=headers) as response:
                    location = response.headers.get("location")
                    if response.status_code in (301, 302, 303, 307, 308) and location:
                        following = _follow(url, location, what)
                        # After a redirect to a foreign origin, send no further secrets, even if that origin redirects
                        # back. Otherwise the foreign server could choose the URL that gets the secrets.
                        may_send_secrets = may_send_secrets and origin_of(following) == origin_of(
                            url
                        )
                        url = following
                        continue
                    return await self._read(response, asked, what)
        raise BrokerRefused(f"{what}: the server redirects more than {_MOST_REDIRECTS} times")

    async def _read(self, response: httpx.Response, asked: str, what: str) -> Answer:
        status, found = response.status_code, response.headers
        raise_for_status(status, found.get("retry-after"), what)
        headers = {name: found[name] for name in _KEPT_HEADERS if name in found}
        validators = Validators(asked, found.get("etag"), _last_modified(found))
        if status == 304:
            return Answer(None, headers, validators)
        if status == 204:
            return Answer(None, headers, validators, is_empty=True)
        if not 200 <= status < 300:
            raise BrokerRefused(f"{what}: the server answers {status}, which has no content")
        parts, size = [], 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self._settings.max_bytes:
                raise BrokerRefused(
                    f"{what}: the answer has more than {self._settings.max_bytes} bytes",
                    hint="raise max_bytes in the connection, or ask for less",
                )
            parts.append(part)
        return Answer(b"".join(parts), headers, validators)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _last_modified(headers: Mapping[str, str]) -> str | None:
    """Return `Last-Modified`, if it is old enough to distinguish this content from a later one."""
    value = headers.get("last-modified")
    modified = read_date(value)
    if modified is None:
        return None
    # A server without a clock sends no `Date`. Use the time of this machine instead (RFC 9110, section 6.6.1).
    answered = read_date(headers.get("date")) or datetime.now(UTC)
    return value if answered - modified >= _SETTLED_AFTER else None


def _with_query(url: str, params: Mapping[str, Any] | None) -> str:
    return str(httpx.URL(url).copy_merge_params(dict(params))) if params else url


def _follow(url: str, location: str, what: str) -> str:
    """Return the URL to which an answer redirects.

    Raises:
        BrokerRefused: The target is no URL, or is not allowed.
    """
    try:
        following = urljoin(url, location)
        origin_of(following)
    except ValueError as error:
        raise BrokerRefused(f"{what}: the server redirects to an invalid URL: {error}") from error
    scheme = urlsplit(following).scheme
    if scheme not in ("http", "https"):
        raise BrokerRefused(f"{what}: the server redirects to {shown(following)}")
    if urlsplit(url).scheme == "https" and scheme == "http":
        raise BrokerRefused(
            f"{what}: the server redirects to {shown(following)}, which is not encrypted",
            hint="use that URL in the trigger if this is intended",
        )
    return following


def _ssl_context(verify: bool | str) -> ssl.SSLContext:
    if isinstance(verify, bool):
        return httpx.create_ssl_context(verify=verify)
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        raise ConfigurationError(
            f"the authorities of the HTTP connection cannot be read from {verify}: {error}",
            hint="verify is true, false, or the path of a PEM file",
        ) from error
