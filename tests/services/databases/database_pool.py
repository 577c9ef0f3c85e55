"""PostgreSQL databases at the newest revision, used in turn by tests. A new database would cost ten times as much."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import asyncpg

from tests.services.databases.postgres import PostgresServer
from tests.services.databases.stores import create_migrated_database
from tests.services.process import run_apart

# A digest of a database without its rows: tables, functions, triggers, rights and settings.
_SHAPE = """
SELECT md5(string_agg(part::text, E'\\n' ORDER BY part::text)) FROM (
  SELECT (relname, relkind, relowner, relacl, reloptions) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT (attrelid::regclass, attname, atttypid, attnotnull, attisdropped, attacl) FROM pg_attribute
    JOIN pg_class ON attrelid = pg_class.oid WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT (proname, prosrc) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
  UNION ALL SELECT (tgname, tgenabled) FROM pg_trigger WHERE NOT tgisinternal
  UNION ALL SELECT (datconnlimit, datallowconn, datacl) FROM pg_database WHERE datname = current_database()
  UNION ALL SELECT (setrole, setconfig) FROM pg_db_role_setting
    JOIN pg_database ON setdatabase = pg_database.oid WHERE datname = current_database()
  UNION ALL SELECT ('schema', nspacl) FROM pg_namespace WHERE nspname = 'public'
  UNION ALL SELECT ('revision', version_num) FROM alembic_version
) AS parts(part)
"""
_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# `reltuples` is negative until a table is analyzed. Do not use pg_statistic, which gets no row if the table is empty
# when it is analyzed.
_HAS_STATISTICS = """
SELECT EXISTS (SELECT FROM pg_class
               WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND reltuples >= 0)
"""
_WRITTEN_TABLES = """
SELECT quote_ident(relname), pg_relation_size(oid) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
  AND pg_relation_size(oid) > 0
"""
_SMALL_BYTES = 10 * 8192
"""The planner assumes ten pages for a small table without statistics. So a table of this size may keep its pages."""
_RESTART_SEQUENCES = """
SELECT setval(oid, 1, false) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
"""


@cache
def database_pool(server: PostgresServer) -> DatabasePool:
    """Return the pool of a server. Some test modules have a server, and so a pool, of their own."""
    return DatabasePool(server)


class DatabasePool:
    """Databases of one server. A database that is lent has no rows."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._free: list[str] = []
        self._shape: str | None = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """Lend a database that nobody else uses; yield its URL. After the block, all connections to it are closed."""
        name = self._free.pop() if self._free else self._create()
        try:
            yield self._server.url(name)
        finally:
            self._server.start()  # the test may have stopped it
            if run_apart(self._clear(name)):
                self._free.append(name)
            else:
                self._server.drop_database(name)

    def _create(self) -> str:
        name = f"test_{uuid.uuid4().hex[:12]}"
        create_migrated_database(self._server, name)
        if self._shape is None:
            self._shape = run_apart(self._shape_of(name))
        return name

    async def _shape_of(self, name: str) -> str:
        connection = await self._connect(name)
        try:
            return str(await connection.fetchval(_SHAPE))
        finally:
            await connection.close()

    async def _clear(self, name: str) -> bool:
        """Remove all rows; return False if the database differs otherwise from a new one."""
        try:
            connection = await self._connect(name)
        except asyncpg.PostgresError:
            return False  # the test has dropped the database, or refuses connections to it
        try:
            await connection.execute(_END_OTHERS)
            if await connection.fetchval(_SHAPE) != self._shape:
                return False
            # Statistics about the rows of another test would change the planner's choices.
            if await connection.fetchval(_HAS_STATISTICS):
                return False
            await self._delete_rows(connection)
        except asyncpg.PostgresError:
            return False  # the test may have dropped tables
        else:
            return True
        finally:
            await connection.close()

    @staticmethod
    async def _delete_rows(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        sizes = {row[0]: row[1] for row in await connection.fetch(_WRITTEN_TABLES)}
        if any(size > _SMALL_BYTES for size in sizes.values()):
            await connection.execute(f"TRUNCATE {', '.join(sizes)} RESTART IDENTITY CASCADE")
        elif sizes:
            # TRUNCATE makes new files for a table and its indexes, which costs ten times as much.
            deletions = "; ".join(f"DELETE FROM {table}" for table in sizes)
            # In this role, the order of the tables does not matter: foreign keys are not checked.
            await connection.execute(f"SET session_replication_role = replica; {deletions}")
            await connection.execute(_RESTART_SEQUENCES)

    async def _connect(self, name: str) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(self._server.url(name).replace("+asyncpg", ""))
