"""Translates the failures of requests into the project's errors, which never show a header or a query."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies

import httpx

from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable

MOST_PATIENCE_S: Final = 3600.0
"""A longer `Retry-After` counts as this many seconds."""

CAUGHT: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError)

_HINTS: Final = {
    401: "check the connection's token or headers",
    403: "may this token read it?",
    404: "check the URL",
    407: "check the proxy's user and password",
    410: "check the URL",
}
_LATER: Final = frozenset({408, 425, 429})


class TryLater(BrokerUnavailable):
    """The server refuses the request for now, and says when to repeat it (`Retry-After`).

    Attributes:
        seconds: The time to wait before the request is repeated.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class RequestRefused(BrokerRefused):
    """The server refuses the request, and would refuse a repeat.

    Attributes:
        status: The HTTP status of the answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, hint=_HINTS.get(status))
        self.status = status


def shown(url: str) -> str:
    """Return a URL without user, query and fragment, which may contain secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def translate(error: BaseException, what: str) -> BrokerError:
    """Return the project's error for an error of httpx. The message begins with `what`: "GET https://host/orders"."""
    if isinstance(error, TimeoutError):
        return BrokerUnavailable(
            f"{what}: no complete answer in time",
            hint="timeout_s is too low, or the server is down",
        )
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return BrokerRefused(
            f"{what}: the server's certificate cannot be verified: {error}",
            hint='verify = "/path/of/the/authority.pem" in the connection trusts a private authority',
        )
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return BrokerRefused(f"{what}: {error}", hint="check the URL and the headers")
    if isinstance(error, httpx.TimeoutException):
        return BrokerUnavailable(
            f"{what}: no answer in time", hint="is the server up, and is timeout_s enough?"
        )
    said = str(error) or type(error).__name__
    hint = "is the server up, and reachable from here?"
    if getproxies():
        hint += (
            " Requests go through the proxy of the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)"
        )
    return BrokerUnavailable(f"{what}: {said}", hint=hint)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def raise_for_status(status: int, retry_after: str | None, what: str) -> None:
    """Raise an error for a status that means failure.

    Raises:
        TryLater: A later request may succeed, and the answer says when to send it.
        BrokerUnavailable: A later request may succeed.
        RequestRefused: A later request would fail too.
    """
    if status < 400:
        return
    said = f"{what}: the server answers {status} {httpx.codes.get_reason_phrase(status)}".rstrip()
    if status < 500 and status not in _LATER:
        raise RequestRefused(said, status)
    seconds = read_retry_after(retry_after)
    if seconds is not None:
        raise TryLater(said, seconds)
    raise BrokerUnavailable(said)


def read_retry_after(value: str | None) -> float | None:
    """Return the wait in seconds that `Retry-After` (a number or a date) demands, at most `MOST_PATIENCE_S`.

    Return None if the header is missing or cannot be read.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isdecimal():
        seconds = float(text)
    else:
        instant = read_date(text)
        if instant is None:
            return None
        seconds = (instant - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MOST_PATIENCE_S)


def read_date(value: str | None) -> datetime | None:
    """Return the instant in a header such as `Date`; None if the header is missing or cannot be read."""
    if value is None:
        return None
    try:
        instant = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        # OverflowError: a number, such as the year, is too large for a `datetime`.
        return None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
