"""Access tokens for SASL OAUTHBEARER: a configured token, or tokens from an OAuth 2.0 token endpoint."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import anyio
from aiokafka import errors as sdk
from aiokafka.abc import AbstractTokenProvider
from anyio import to_thread

if TYPE_CHECKING:
    from ssl import SSLContext

_TIMEOUT_S = 10.0
_RENEW_AT = 0.8
"""Once this fraction of an access token's life is over, the next connection gets a new token."""


class ConfiguredToken(AbstractTokenProvider):  # type: ignore[misc]
    """The access token in the configuration.

    A token in a file (`file:PATH`) is read again whenever the stream opens again.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        """Return the token.

        Raises:
            AuthenticationFailedError: The token has expired. Without this check, the broker would refuse the token,
                and the client would only report that no broker is known.
        """
        over_at = _expiry_of(self._token)
        if over_at is not None and over_at <= time.time():
            when = datetime.fromtimestamp(over_at, UTC).isoformat(timespec="seconds")
            raise sdk.AuthenticationFailedError(f"sasl_oauth_token expired at {when}")
        return self._token


def _expiry_of(token: str) -> float | None:
    """Return when a JSON Web Token expires, in seconds since 1970; None for any other token, or without an expiry."""
    try:
        _, claims, *_ = token.split(".")
        decoded = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return float(decoded["exp"])
    except (KeyError, TypeError, ValueError):
        return None


class EndpointTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Fetches access tokens with the grant "client credentials", and uses each token for four fifths of its life.

    Source: RFC 6749, sections 2.3.1 and 4.4.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        *,
        scope: str | None,
        context: SSLContext | None,
    ) -> None:
        self._url = url
        login = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._login = base64.b64encode(login.encode()).decode()
        self._form = {"grant_type": "client_credentials"}
        if scope:
            self._form["scope"] = scope
        self._context = context
        self._lock = anyio.Lock()
        self._token = ""
        self._renew_at = 0.0

    async def token(self) -> str:
        """Return a token for a new connection.

        Raises:
            AuthenticationFailedError: The endpoint refuses, or answers without a token.
            KafkaConnectionError: The endpoint does not answer.
        """
        async with self._lock:
            if time.monotonic() >= self._renew_at:
                asked_at = time.monotonic()
                self._token, life_s = await to_thread.run_sync(self._ask, abandon_on_cancel=True)
                self._renew_at = asked_at + life_s * _RENEW_AT
            return self._token

    def _ask(self) -> tuple[str, float]:
        request = Request(
            self._url,
            data=urlencode(self._form).encode(),
            headers={"Authorization": f"Basic {self._login}", "Accept": "application/json"},
        )
        try:
            with urlopen(request, timeout=_TIMEOUT_S, context=self._context) as response:
                answer = json.load(response)
            return str(answer["access_token"]), float(answer.get("expires_in", 0))
        except HTTPError as error:
            error.close()
            raise sdk.AuthenticationFailedError(
                f"the token endpoint {self._url} answers {error.code} {error.reason}"
            ) from error
        except (HTTPException, OSError) as error:
            raise sdk.KafkaConnectionError(f"the token endpoint {self._url}: {error}") from error
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise sdk.AuthenticationFailedError(
                f"the token endpoint {self._url} answers without a token"
            ) from error
