"""Upgrades the database's tables to this release, and checks their revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from triggerer.errors import ConfigurationError
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.transactions import Database
from triggerer.store.schema.migrations import THIS_RELEASE, Migrations, number
from triggerer.store.schema.revisions import read_revision, read_usable_revision

if TYPE_CHECKING:
    from triggerer.store.schema.steps import OnStep, Patience

_log = LazyLogger(__name__)


class Phase(Enum):
    """How far to upgrade."""

    BEFORE = "before"
    """Up to the newest before-migration, which this release needs. Instances of the previous release still work."""
    AFTER = "after"
    """All migrations. No instance of the previous release may be left."""


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The state of tables with which this release works."""

    revision: str
    left: Sequence[str]
    """The after-migrations of this release that have not run."""


async def current(database: Database) -> str | None:
    """Return the revision of the tables, or None if the database has no tables of the service.

    Raises:
        StoreUnavailable: As for `Database.reading`.
    """
    async with database.reading() as session:
        return await read_revision(session)


async def check(database: Database, migrations: Migrations = THIS_RELEASE) -> SchemaStatus:
    """Check that this release works with the tables.

    Raises:
        ConfigurationError: The tables are too old or too new. The hint says what to do.
        StoreUnavailable: As for `Database.reading`.
    """
    revision = await read_usable_revision(database, migrations)
    if revision is None:
        raise ConfigurationError(
            f"{database.name} has no tables yet", hint="run `triggerer db migrate`"
        )
    if number(revision) < number(migrations.newest_before):
        raise ConfigurationError(
            f"the tables of {database.name} are at revision {revision}, this release needs "
            f"{migrations.newest_before}",
            hint="run `triggerer db migrate`",
        )
    return SchemaStatus(revision, migrations.later_than(revision))


async def upgrade(
    database: Database,
    on_step: OnStep | None = None,
    *,
    phase: Phase = Phase.BEFORE,
    is_alone: bool = False,
    migrations: Migrations = THIS_RELEASE,
    patience: Patience | None = None,
) -> bool:
    """Upgrade the tables; return False if there is nothing to do.

    A database without tables gets all migrations in either phase.

    Args:
        on_step: Called for each migration that has run.
        is_alone: True if no other process can be alive. Otherwise an after-migration is refused while instances of an
            older release are registered.
    Raises:
        ConfigurationError: The tables need a newer release, older instances are in the way of an after-migration, or
            the database's encoding lacks some characters.
        StoreUnavailable, Conflict, OutcomeUnknown: As for `Database.transaction`. A second try is safe.
    """
    before = await read_usable_revision(database, migrations)
    goal = migrations.newest_before if phase is Phase.BEFORE and before else migrations.newest
    if before is not None and number(before) >= number(goal):
        if number(before) > number(migrations.newest):
            _log.info("the tables are of a newer release, and this release works with them")
        return False
    from triggerer.store.schema.steps import Patience, Upgrade

    todo = Upgrade(
        database, migrations, on_step, is_alone=is_alone, patience=patience or Patience()
    )
    if not await todo.run(goal):
        return False
    _log.info("the database was upgraded", database=database.name, before=before, now=goal)
    return True
