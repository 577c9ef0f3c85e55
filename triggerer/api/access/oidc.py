"""Signs people in through an OpenID Connect provider, by the code flow with PKCE. A claim decides the person's role.

Source: OpenID Connect Core 1.0, section 3.1; RFC 7636 (PKCE); RFC 9700 (best current practice).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from triggerer.api.access.roles import ORDER
from triggerer.config.references import resolve
from triggerer.errors import ConfigurationError, RoleNeeded, ServerBusy, SignInNeeded
from triggerer.http_libraries import http_errors

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client

    from triggerer.config import Settings

_PENDING_S: Final = 600
_TIMEOUT_S: Final = 10.0
_LEEWAY_S: Final = 60
_NEEDED: Final = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
"""The provider's metadata that a sign-in uses."""
_ALGORITHMS: Final = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "EdDSA"]
SCOPE: Final = "openid profile email"


@dataclass(frozen=True, slots=True)
class Person:
    """A person whom the provider has identified."""

    name: str
    role: str


class OidcProvider:
    """The provider of `[api.oidc]`. Its endpoints and keys are read at the first sign-in.

    Args:
        key: Signs the cookie of an unfinished sign-in. Each process of the API that has this key can finish a sign-in
            that another process has started.
    Raises:
        ConfigurationError: The extra `oidc` is not installed, or the client's secret cannot be read.
    """

    def __init__(self, settings: Settings, key: bytes) -> None:
        check_installed()
        self._settings = settings.api.oidc
        file = settings.file
        self._secret = str(
            resolve(
                self._settings.client_secret,
                "api.oidc.client_secret",
                settings.environ,
                file.parent if file else settings.core.home,
            )
        )
        self._key = key
        self._metadata: dict[str, Any] | None = None
        self._keys: Any = None

    async def begin(self, redirect_uri: str) -> tuple[str, str]:
        """Return the provider's URL for a new sign-in, and the cookie that `finish` needs.

        Raises:
            ServerBusy: The provider does not answer, or its metadata are unusable.
        """
        metadata = await self._discover()
        state, nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        verifier = secrets.token_urlsafe(48)
        async with self._client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=state,
                nonce=nonce,
                code_verifier=verifier,
            )
        pending = {"s": state, "n": nonce, "v": verifier, "t": int(time.time()) + _PENDING_S}
        return str(url), self._sign(pending)

    async def finish(
        self, *, code: str, state: str, cookie: str | None, redirect_uri: str
    ) -> Person:
        """Return the person whom the provider has identified.

        Raises:
            SignInNeeded: The sign-in started in another browser, took too long, or was refused by the provider. Or the
                provider's token is not valid.
            RoleNeeded: `[api.oidc] roles` names no role for the values of the person's claim.
            ServerBusy: The provider does not answer, or its metadata, tokens or keys are unusable.
        """
        pending = self._verified(cookie)
        if pending is None or not _equal(str(pending["s"]), state):
            raise SignInNeeded(
                "this sign-in did not begin in this browser, or took too long", hint="sign in again"
            )
        metadata = await self._discover()
        answer = await self._exchange(metadata, code, str(pending["v"]), redirect_uri)
        claims = await self._claims(metadata, answer.get("id_token"), str(pending["n"]))
        name = claims.get("email") or claims.get("preferred_username") or claims["sub"]
        return Person(str(name), self._role(claims, str(name)))

    async def _exchange(
        self, metadata: Mapping[str, Any], code: str, verifier: str, redirect_uri: str
    ) -> Mapping[str, Any]:
        from authlib.integrations.base_client import OAuthError

        try:
            async with self._client(redirect_uri) as client:
                found: Mapping[str, Any] = await client.fetch_token(
                    metadata["token_endpoint"], code=code, code_verifier=verifier
                )
        except OAuthError as error:
            raise SignInNeeded(
                f"the provider refused the sign-in: {error.error}", hint="sign in again"
            ) from error
        except http_errors() as error:
            raise ServerBusy(f"the provider does not answer: {error}") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise ServerBusy(f"the provider's answer has no tokens: {error}") from error
        return found

    async def _claims(
        self, metadata: Mapping[str, Any], token: object, nonce: str
    ) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            decoded = jwt.decode(str(token), await self._load_keys(metadata), _ALGORITHMS)
            jwt.JWTClaimsRegistry(
                leeway=_LEEWAY_S,
                iss={"essential": True, "value": metadata["issuer"]},
                aud={"essential": True, "value": self._settings.client_id},
                exp={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
            ).validate(decoded.claims)
        except (JoseError, ValueError) as error:
            # The provider may have new keys, so the next sign-in loads the keys again.
            self._keys = None
            raise SignInNeeded(
                f"the provider's token is not valid: {error}", hint="sign in again"
            ) from error
        return decoded.claims

    def _role(self, claims: Mapping[str, Any], name: str) -> str:
        found = claims.get(self._settings.role_claim)
        values = found if isinstance(found, list) else [found]
        names = [one for one in values if isinstance(one, str)]
        roles = {self._settings.roles[one] for one in names if one in self._settings.roles}
        best = max((role for role in roles if role in ORDER), key=ORDER.index, default=None)
        if best is None:
            raise RoleNeeded(
                f"{name} has no role here",
                hint=f"[api.oidc] roles names a role for values of the claim {self._settings.role_claim!r}",
            )
        return best

    async def _discover(self) -> dict[str, Any]:
        if self._metadata is None:
            issuer = self._settings.issuer.rstrip("/")
            found = await self._get(f"{issuer}/.well-known/openid-configuration")
            for key in _NEEDED:
                if not isinstance(found.get(key), str):
                    raise ServerBusy(f"the metadata of the provider at {issuer} lack {key}")
            if found["issuer"].rstrip("/") != issuer:
                raise ServerBusy(f"the provider at {issuer} names another issuer")
            self._metadata = found
        return self._metadata

    async def _load_keys(self, metadata: Mapping[str, Any]) -> Any:
        if self._keys is None:
            from joserfc.errors import JoseError
            from joserfc.jwk import KeySet

            found = await self._get(metadata["jwks_uri"])
            try:
                self._keys = KeySet.import_key_set(found)  # type: ignore[arg-type]
            except (JoseError, LookupError, TypeError, ValueError) as error:
                # The library does not check the form of a key set.
                raise ServerBusy(f"the provider's keys cannot be read: {error!r}") from error
        return self._keys

    async def _get(self, url: str) -> dict[str, Any]:
        import httpx

        expected: tuple[type[Exception], ...] = (*http_errors(), ValueError)
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
                answer = await client.get(url)
                answer.raise_for_status()
                found = answer.json()
        except expected as error:
            raise ServerBusy(
                f"the OpenID Connect provider does not answer: {error}",
                hint="see [api.oidc] issuer; tokens work meanwhile",
            ) from error
        if not isinstance(found, dict):
            raise ServerBusy("the OpenID Connect provider's answer is not an object")
        return found

    def _client(self, redirect_uri: str) -> AsyncOAuth2Client:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return AsyncOAuth2Client(
            self._settings.client_id,
            self._secret,
            scope=SCOPE,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
        )

    def _sign(self, pending: Mapping[str, Any]) -> str:
        body = base64.urlsafe_b64encode(json.dumps(pending).encode()).decode()
        return f"{body}.{self._mac(body)}"

    def _verified(self, cookie: str | None) -> Mapping[str, Any] | None:
        body, _, mac = (cookie or "").partition(".")
        if not _equal(self._mac(body), mac):
            return None
        pending: Mapping[str, Any] = json.loads(base64.urlsafe_b64decode(body))
        return pending if pending["t"] > time.time() else None

    def _mac(self, body: str) -> str:
        return hmac.new(self._key, b"oidc:" + _bytes(body), hashlib.sha256).hexdigest()


def _equal(ours: str, given: str) -> bool:
    """Compare in constant time. `given` comes from a browser, and may have any characters."""
    return hmac.compare_digest(_bytes(ours), _bytes(given))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def check_installed() -> None:
    """Check that the libraries of the extra `oidc` are installed.

    Raises:
        ConfigurationError: A library is missing.
    """
    if find_spec("authlib") is None or find_spec("joserfc") is None:
        raise ConfigurationError(
            "[api.oidc] needs a library that is not installed",
            hint="pip install 'triggerer[oidc]'",
        )
