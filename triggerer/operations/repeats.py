"""Recognizes a repeated request by its `Idempotency-Key`, and refuses a key that a different request has used.

If two requests with the same key arrive at the same time, the second waits until the first has ended. The draft
standard would also allow the status 409 for the second request.

Source: draft-ietf-httpapi-idempotency-key-header-07, sections 2.2 and 2.7.
"""

from __future__ import annotations

import hashlib

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.errors import KeyReused
from triggerer.store.access.requests import claim_key


async def is_repeat(session: AsyncSession, actor: Actor, key: str, request: bytes) -> bool:
    """Reserve the key for this request, in the caller's transaction. Return whether the request is a repeat.

    Args:
        request: The path and the body of the request, as bytes. A request with equal bytes is a repeat.
    Raises:
        KeyReused: The sender has used the key for another request.
    """
    digest = hashlib.sha256(request).hexdigest()
    first = await claim_key(session, sender=actor.via, key=key, request=digest)
    if first is None or first == digest:
        return first is not None
    raise KeyReused(
        "this Idempotency-Key was used for another request", hint="use a new key for each request"
    )
