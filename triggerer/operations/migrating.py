"""Upgrades the tables of the database, at a person's request or at the start of a service."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.operations.audit import Action, record
from triggerer.store.database.transactions import Database
from triggerer.store.schema.migrate import upgrade
from triggerer.store.schema.migrations import HEAD


async def migrate(database: Database, actor: Actor) -> bool:
    """Upgrade the tables to this release's revision. Return False if they have this revision already.

    Raises:
        Errors of `triggerer.store.schema.migrate.upgrade`. Nothing was changed.
    """

    async def recorded(session: AsyncSession, before: str | None) -> None:
        await record(
            session,
            actor,
            Action.DATABASE_MIGRATE,
            "database",
            before={"revision": before},
            after={"revision": HEAD},
        )

    return await upgrade(database, recorded)
