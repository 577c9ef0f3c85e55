"""The secret key that all services on one database share, for signing run tokens and requests to one another.

The key is stored in the database, so operators need not configure it on each machine.
"""

from __future__ import annotations

import secrets

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.transactions import Database, insert_into
from triggerer.store.schema.models import ApiKey

_ID = 1


async def service_key(database: Database) -> bytes:
    """Return the key. The first call on a database creates it."""
    async with database.reading() as session:
        found = await _read(session)
    if found is None:
        async with database.transaction() as session:
            made = insert_into(session, ApiKey).values(id=_ID, secret=secrets.token_hex(32))
            await session.execute(made.on_conflict_do_nothing())
            found = await _read(session)
    assert found is not None
    return bytes.fromhex(found)


async def _read(session: AsyncSession) -> str | None:
    found: str | None = await session.scalar(select(ApiKey.secret).where(ApiKey.id == _ID))
    return found
