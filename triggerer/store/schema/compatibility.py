"""Stops a release that is too old for the tables.

An after-migration may remove columns that older releases use. So before an after-migration runs, `require` stores the
newest migration that a release must contain. A service whose release lacks this migration does not start. A running
service checks this every five seconds (`SchemaWatch`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import anyio
from anyio.abc import TaskStatus
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import ConfigurationError, StoreError
from triggerer.observability.logging_setup import LazyLogger
from triggerer.processes.instance_ids import is_known_dead, release
from triggerer.store.database.transactions import Database, database_now, insert_into
from triggerer.store.schema.migrations import THIS_RELEASE, Migrations, number
from triggerer.store.schema.models import Instance, SchemaCompat

_log = LazyLogger(__name__)

INTERVAL: Final = timedelta(seconds=5)


async def refuse_if_too_old(
    session: AsyncSession, name: str, migrations: Migrations = THIS_RELEASE
) -> None:
    """Check that a release with these migrations works with the tables.

    Args:
        name: The database's name in the message.
    Raises:
        ConfigurationError: The release is too old for the tables.
    """
    rows = await session.scalars(select(SchemaCompat))
    newest = max(rows, key=lambda row: number(row.min_revision), default=None)
    if newest is not None and number(newest.min_revision) > number(migrations.newest):
        raise ConfigurationError(
            f"the tables of {name} are newer than this release: they need a release with the migration "
            f"{newest.min_revision}, and the newest one of release {release()} is {migrations.newest}",
            hint=f"install release {newest.release}, which upgraded the tables, or a newer one",
        )


async def require(
    session: AsyncSession, revision: str, min_revision: str, *, is_alone: bool
) -> None:
    """Refuse releases without `min_revision` from now on, because the after-migration `revision` runs next.

    Args:
        is_alone: True if no other process can be alive. Then registered instances are ignored.
    Raises:
        ConfigurationError: Instances of older releases are registered. The message names them.
        Conflict: Another session keeps the instances' table locked.
    """
    if session.get_bind().dialect.name == "postgresql":
        # No instance can register until this transaction ends, so the query below finds all older instances. An older
        # instance that registers later finds the new row of `SchemaCompat`, and stops.
        await session.execute(text("LOCK TABLE instance IN SHARE MODE"))
    if not is_alone and (older := await _older_instances(session, min_revision)):
        raise ConfigurationError(
            f"the migration {revision} has to wait, because these instances are of an older release: "
            + ", ".join(older),
            hint="stop them, then run `triggerer db migrate --after`; a killed instance counts for another half minute",
        )
    values = {"min_revision": min_revision, "release": release()}
    await session.execute(
        insert_into(session, SchemaCompat)
        .values(revision=revision, required_at=await database_now(session), **values)
        .on_conflict_do_update(index_elements=[SchemaCompat.revision], set_=values)
    )


async def _older_instances(session: AsyncSession, min_revision: str) -> list[str]:
    """Return the live instances whose release lacks this migration, as texts for people."""
    now = await database_now(session)
    alive = select(Instance).where(Instance.expires_at > now).order_by(Instance.kind, Instance.id)
    return [
        f"{row.kind} {row.id} (release {row.release or 'unknown'})"
        for row in await session.scalars(alive)
        if number(row.revision) < number(min_revision) and not is_known_dead(row.id)
    ]


class SchemaWatch:
    """Ends a running service whose release has become too old for the tables."""

    def __init__(
        self,
        database: Database,
        migrations: Migrations = THIS_RELEASE,
        *,
        interval: timedelta = INTERVAL,
    ) -> None:
        self._database = database
        self._migrations = migrations
        self._interval_s = interval.total_seconds()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Check the tables until cancelled. Call this method after this process has registered its instances.

        Then either `require` finds the instances, or this check finds the row that `require` has stored.

        Raises:
            ConfigurationError: The release is too old for the tables.
        """
        await self._check()
        task_status.started()
        while True:
            await anyio.sleep(self._interval_s)
            await self._check()

    async def _check(self) -> None:
        try:
            async with self._database.reading() as session:
                await refuse_if_too_old(session, self._database.name, self._migrations)
        except StoreError as error:
            # Waiting for the next check is safe. A service that cannot reach the database cannot use newer tables.
            _log.debug("the tables' age could not be checked", error=str(error))
