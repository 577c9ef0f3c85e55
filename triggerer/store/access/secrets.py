"""Makes the secrets of the HTTP API, and the digests that the store keeps in their place."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

PREFIX: Final = "trg"
RUN_PREFIX: Final = "trgrun"


def new_token() -> tuple[str, str]:
    """Return the id of a new token, and the token: `trg_<id>_<secret>`."""
    token_id = secrets.token_hex(4)
    return token_id, f"{PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"


def new_secret() -> str:
    """Return a new secret for a cookie or a link."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def id_in(token: str) -> str | None:
    """Return the id in an API token. None: the text does not have the form `trg_<id>_<secret>`."""
    prefix, _, rest = token.partition("_")
    token_id, _, secret = rest.partition("_")
    return token_id if prefix == PREFIX and secret else None
