"""The size of the database."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession


async def database_bytes(session: AsyncSession) -> int:
    """Return the size of the database in bytes: on SQLite without free pages, on PostgreSQL with free space."""
    if session.get_bind().dialect.name == "sqlite":
        pages, free, size = [
            (await session.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("page_count", "freelist_count", "page_size")
        ]
        return int((pages - free) * size)
    found = await session.execute(text("SELECT pg_database_size(current_database())"))
    return int(found.scalar_one())
