"""Stores which request used an `Idempotency-Key`, so that a request that is sent twice is carried out once."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.access.secrets import digest_of
from triggerer.store.database.transactions import database_now, insert_into
from triggerer.store.schema.models import ApiRequest


async def claim_key(session: AsyncSession, *, sender: str, key: str, request: str) -> str | None:
    """Reserve a sender's key for a request. The caller commits.

    Two requests with one key may come at the same moment. On PostgreSQL the second request waits here until the
    transaction of the first has ended. On SQLite the second transaction begins only after the first has ended.

    Args:
        sender: The identity that sent the request. Two senders may use equal keys.
        request: The digest of the request's method, path and body.
    Returns:
        None if the key is new, otherwise the digest of the request that used the key first.
    """
    digest = digest_of(f"{sender}\0{key}")
    row = {"digest": digest, "request": request, "made_at": await database_now(session)}
    insert = insert_into(session, ApiRequest).values(row).on_conflict_do_nothing()
    first = select(ApiRequest.request).where(ApiRequest.digest == digest)
    while True:
        if await session.scalar(insert.returning(ApiRequest.digest)) is not None:
            return None
        used: str | None = await session.scalar(first)
        if used is not None:
            return used
        # On PostgreSQL, `delete_keys` may delete the older row between the two statements. Then
        # insert the key again.


async def delete_keys(session: AsyncSession, before: datetime) -> None:
    """Delete the keys of requests that were made before an instant."""
    await session.execute(delete(ApiRequest).where(ApiRequest.made_at < before))
