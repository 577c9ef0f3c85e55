"""Upgrades the tables of the database, at a person's request or at the start of a service."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.operations.audit import Action, record
from triggerer.store.database.transactions import Database
from triggerer.store.schema.migrate import Phase, upgrade
from triggerer.store.schema.migrations import THIS_RELEASE, Migrations


async def migrate(
    database: Database,
    actor: Actor,
    *,
    phase: Phase = Phase.BEFORE,
    is_alone: bool = False,
    migrations: Migrations = THIS_RELEASE,
) -> bool:
    """Upgrade the tables, with a row in the audit for each migration. Return False if there is nothing to do.

    Args:
        phase: How far to upgrade.
        is_alone: True: no other process of the service can be alive.
    Raises:
        Errors of `triggerer.store.schema.migrate.upgrade`.
    """

    async def recorded(session: AsyncSession, before: str | None, after: str) -> None:
        await record(
            session,
            actor,
            Action.DATABASE_MIGRATE,
            "database",
            before={"revision": before},
            after={"revision": after},
        )

    return await upgrade(database, recorded, phase=phase, is_alone=is_alone, migrations=migrations)
