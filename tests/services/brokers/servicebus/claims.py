"""`$cbs`: checks the tokens that give a connection its rights, and their expiry."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import urllib.parse
from dataclasses import dataclass, field

KEY_NAME = "RootManageSharedAccessKey"
KEY = "a-key-of-the-tests="


@dataclass(slots=True)
class Tokens:
    """The rules by which the test Service Bus accepts tokens.

    Attributes:
        jwts: Tokens of identities that are accepted, such as tokens of a managed identity.
        denied: Paths (lower case) for which no token gives a right.
        lifetime_s: The longest time that a claim is valid; None: until the token expires.
    """

    jwts: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    lifetime_s: float | None = None
    accepted: int = 0
    refused: int = 0

    def check(self, token: str) -> tuple[int, str, float]:
        """Return the answer to a `put-token` (status and description), and when the claim ends (Unix time, in s)."""
        # The SDK sends shared access signatures as tokens of type "jwt", too.
        if not token.startswith("SharedAccessSignature "):
            good = token in self.jwts
            expires_at = time.time() + 3600
            reason = "InvalidToken: the token is not known, or not valid any more"
        else:
            good, expires_at = _check_signature(token)
            reason = "InvalidSignature: The token has an invalid signature."
        if not good:
            self.refused += 1
            return 401, reason, 0.0
        self.accepted += 1
        if self.lifetime_s is not None:
            expires_at = min(expires_at, time.time() + self.lifetime_s)
        return 202, "Accepted", expires_at


def _check_signature(token: str) -> tuple[bool, float]:
    fields = urllib.parse.parse_qs(token.removeprefix("SharedAccessSignature "))
    try:
        resource, expiry, signature = fields["sr"][0], fields["se"][0], fields["sig"][0]
    except KeyError:
        return False, 0.0
    if fields.get("skn") != [KEY_NAME]:
        return False, 0.0
    signed = f"{urllib.parse.quote_plus(resource)}\n{expiry}".encode()
    expected = base64.b64encode(hmac.new(KEY.encode(), signed, hashlib.sha256).digest()).decode()
    return signature == expected, float(expiry)
