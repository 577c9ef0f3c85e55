"""Finds asset aliases by name, and creates missing ones."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.database.transactions import insert_into
from triggerer.store.schema.models import AssetAlias


async def ensure_aliases(session: AsyncSession, names: Sequence[str]) -> dict[str, int]:
    """Return the ids of the aliases with these names; missing aliases are created."""
    if not names:
        return {}
    known = select(AssetAlias.name, AssetAlias.id).where(AssetAlias.name.in_(names))
    found = {row.name: row.id for row in await session.execute(known)}
    if missing := [name for name in names if name not in found]:
        rows = [{"name": name} for name in missing]
        # ON CONFLICT is needed, because another transaction may create one of the aliases at this moment.
        await session.execute(
            insert_into(session, AssetAlias).values(rows).on_conflict_do_nothing()
        )
        found = {row.name: row.id for row in await session.execute(known)}
    return found
