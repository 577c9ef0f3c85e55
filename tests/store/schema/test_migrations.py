import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Connection, inspect, text

from tests.actors import TESTER
from tests.services.databases.postgres import PostgresServer
from triggerer.errors import ConfigurationError, StoreRefused
from triggerer.operations.migrating import migrate
from triggerer.service.supervising import retry_while_unavailable
from triggerer.store.audit.listing import list_audit
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.schema.migrate import check, current, upgrade
from triggerer.store.schema.migrations import THIS_RELEASE
from triggerer.store.schema.models import Base


def _schema(connection: Connection) -> Any:
    """Everything that the database itself says about its tables."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        return {name: _clauses(sql) for name, sql in rows if "alembic" not in name}
    inspector = inspect(connection)
    indexes = connection.execute(
        text("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    )
    constraints = connection.execute(
        text(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace"
        )
    )
    return {
        "columns": {
            table: [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            ]
            for table in inspector.get_table_names()
            if table != "alembic_version"
        },
        "indexes": {tuple(row) for row in indexes if "alembic" not in row[0]},
        "constraints": {tuple(row) for row in constraints if "alembic" not in row[0]},
    }


def _clauses(sql: str) -> list[str]:
    """Split a statement into clauses. A table's clauses are sorted, because an added column comes last."""
    sql = " ".join(sql.split())
    if not sql.startswith("CREATE TABLE"):
        return [sql]
    begin, _, rest = sql.partition("(")
    body, _, end = rest.rpartition(")")
    outermost = re.findall(r"(?:[^,()]|\([^()]*\))+", body)
    return sorted([begin, *(clause.strip() for clause in outermost), end])


async def test_the_migrations_reach_the_schema_of_the_models(empty_store_url: str) -> None:
    async with open_database(empty_store_url) as database:
        assert await upgrade(database)
        async with database.writer.connect() as connection:
            migrated = await connection.run_sync(_schema)
        async with database.writer.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
            await connection.run_sync(Base.metadata.create_all)
        async with database.writer.connect() as connection:
            modelled = await connection.run_sync(_schema)
    assert migrated == modelled


async def test_an_upgrade_of_current_tables_does_nothing(database: Database) -> None:
    assert await current(database) == THIS_RELEASE.newest
    assert not await upgrade(database)
    await check(database)


async def test_the_audit_says_who_upgraded_the_tables_and_from_which_revision(
    empty_store_url: str,
) -> None:
    async with open_database(empty_store_url) as database:
        assert await migrate(database, TESTER)
        assert not await migrate(database, TESTER)
        async with database.reading() as session:
            (row,) = await list_audit(session)
    assert (row.action, row.actor, row.subject) == ("database.migrate", "tester", "database")
    assert (row.before, row.after) == ({"revision": None}, {"revision": THIS_RELEASE.newest})


async def test_a_database_without_tables_is_refused_with_a_hint(empty_store_url: str) -> None:
    async with open_database(empty_store_url) as database:
        assert await current(database) is None
        with pytest.raises(ConfigurationError, match="triggerer db migrate"):
            await check(database)
        with pytest.raises(ConfigurationError, match="triggerer db migrate"):
            async with database.reading() as session:
                await session.execute(text("SELECT * FROM dag_run"))


@pytest.mark.parametrize("revision", ["0000_before_x", "0001_before_x", "a1b2c3d4e5f6"])
async def test_a_database_of_another_application_is_left_alone(
    database: Database, revision: str
) -> None:
    async with database.transaction() as session:
        await session.execute(
            text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision}
        )
    for refuse in (check, upgrade):
        with pytest.raises(ConfigurationError, match="which no release of triggerer has"):
            await refuse(database)


async def test_a_database_of_a_checkout_before_the_first_release_is_refused(
    database: Database,
) -> None:
    async with database.transaction() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '0016'"))
    for refuse in (check, upgrade):
        with pytest.raises(ConfigurationError, match=r"before release 0\.1\.0") as refused:
            await refuse(database)
        assert refused.value.hint == "use a new database, or delete this one"


async def test_postgresql_cleans_growing_tables_early_and_leaves_room_in_hot_pages(
    store_url: str,
) -> None:
    async with open_database(store_url) as database:
        if database.dialect != "postgresql":
            pytest.skip("SQLite has no such settings")
        async with database.reading() as session:
            rows = await session.execute(
                text("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL")
            )
            options = {name: set(given) for name, given in rows}
    assert "autovacuum_vacuum_insert_scale_factor=0.02" in options["asset_event"]
    assert options["dag_run"] == options["queued_asset_event"] == options["asset_event"]
    assert options["stream"] == {"fillfactor=50"}


async def test_two_services_that_start_together_upgrade_once(empty_store_url: str) -> None:
    upgraded: list[bool] = []

    async def start() -> None:
        async with open_database(empty_store_url) as database:
            # SQLite refuses all other connections while one connection switches a new file to WAL. So try again.
            patience = timedelta(seconds=30)
            upgraded.append(await retry_while_unavailable(lambda: upgrade(database), patience))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        tasks.start_soon(start)
    assert sorted(upgraded) == [False, True]


def test_opening_a_database_that_is_up_to_date_does_not_import_alembic(tmp_path: Path) -> None:
    script = f"""
import anyio, sys
from triggerer.store.database.opening import open_database
from triggerer.store.schema.migrate import upgrade

async def main():
    async with open_database("sqlite:///{tmp_path}/x.db") as database:
        print(await upgrade(database), "alembic" in sys.modules)

anyio.run(main)
"""
    last = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        last.append(done.stdout.decode().splitlines()[-1])
    assert last == ["True True", "False False"]


@pytest.mark.parametrize(("encoding", "is_refused"), [("LATIN1", True), ("SQL_ASCII", False)])
async def test_no_tables_are_made_in_a_database_that_does_not_take_every_text(
    postgres_server: PostgresServer, encoding: str, is_refused: bool
) -> None:
    name = f"encoded_{encoding.lower()}"
    url = postgres_server.create_database(name, encoding=encoding)
    try:
        async with open_database(url) as database:
            if is_refused:
                with pytest.raises(ConfigurationError, match="the encoding LATIN1"):
                    await upgrade(database)
            else:
                await upgrade(database)
            assert (await current(database) is None) == is_refused
    finally:
        postgres_server.drop_database(name)


async def test_where_the_search_path_names_no_schema_the_hint_is_to_correct_it(
    empty_postgres_url: str,
) -> None:
    async with open_database(empty_postgres_url) as database, database.transaction() as session:
        name = await session.scalar(text("SELECT current_database()"))
        await session.execute(text(f'ALTER DATABASE "{name}" SET search_path = nowhere'))
    async with open_database(empty_postgres_url) as database:
        with pytest.raises(StoreRefused) as refused:
            await upgrade(database)
    assert "search_path" in str(refused.value.hint)
