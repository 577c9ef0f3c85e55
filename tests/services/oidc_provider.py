"""A small OpenID Connect provider on loopback. It signs in the person that a test has set, without asking."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey


class OidcProviderServer:
    """The provider. `claims` describe the next person. `spoil` overwrites claims of a token before it is signed.

    `bodies` contains wrong answers, by path, which are sent with status 200.
    """

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "k1"})
        self.client_id, self.client_secret = "triggerer", "s3cret-of-client"
        self.claims: dict[str, Any] = {"sub": "u1", "email": "ann@example.com", "groups": ["ops"]}
        self.spoil: dict[str, Any] = {}
        self.changed_metadata: dict[str, Any] = {}
        self.bodies: dict[str, bytes] = {}
        self.issuer = ""
        self._codes: dict[str, dict[str, str]] = {}

    def authorize(self, query: dict[str, str]) -> str:
        """Return the URL to which the browser is sent back, with a code."""
        code = f"code{len(self._codes)}"
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str], authorization: str | None) -> dict[str, Any] | None:
        """Return the tokens for a code, once; None if client, code or verifier are wrong."""
        basic = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            asked is None
            or authorization != f"Basic {basic}"
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return None
        claims = {
            "iss": self.issuer,
            "aud": self.client_id,
            "iat": int(time.time()),
            "exp": int(time.time()) + 300,
            "nonce": asked["nonce"],
            **self.claims,
            **self.spoil,
        }
        signed = jwt.encode({"alg": "RS256", "kid": "k1"}, claims, self.key)
        return {"access_token": "unused", "token_type": "Bearer", "id_token": signed}


@contextmanager
def open_oidc_provider() -> Iterator[OidcProviderServer]:
    """Serve a provider on a free port until the block ends."""
    provider = OidcProviderServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            if url.path == "/.well-known/openid-configuration":
                metadata = {
                    "issuer": provider.issuer,
                    "authorization_endpoint": f"{provider.issuer}/authorize",
                    "token_endpoint": f"{provider.issuer}/token",
                    "jwks_uri": f"{provider.issuer}/keys",
                }
                self.answer(metadata | provider.changed_metadata)
            elif url.path == "/keys":
                self.answer({"keys": [provider.key.as_dict(private=False)]})
            else:
                self.send_response(302)
                self.send_header("Location", provider.authorize(query))
                self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            found = provider.token(form, self.headers.get("Authorization"))
            self.answer(found or {"error": "invalid_grant"}, 200 if found else 400)

        def answer(self, value: Any, status: int = 200) -> None:
            body = provider.bodies.get(self.path)
            self.send_response(status if body is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(value).encode() if body is None else body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, name="oidc")
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
