"""This release works beside an invented next release, which has three more migrations."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tests.store.invented_release import COLUMN, INDEX, REMOVAL, invented_release, next_release
from tests.store.migration_lint import disturbances
from triggerer.errors import ConfigurationError, StoreUnavailable
from triggerer.processes.instance_ids import new_instance_id
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.schema.compatibility import SchemaWatch, require
from triggerer.store.schema.migrate import Phase, check, current, upgrade
from triggerer.store.schema.migrations import (
    THIS_RELEASE,
    Migrations,
    is_after,
    is_revision,
    number,
)
from triggerer.store.schema.models import Dag
from triggerer.store.schema.scripts import configuration
from triggerer.store.schema.steps import Patience
from triggerer.store.streams.leases import deregister_instance, register_instance

ELSEWHERE = "elsewhere:1:00000000"
SHORT = Patience(timedelta(milliseconds=100), pause=timedelta(milliseconds=50), attempts=50)


@pytest.fixture
def following(tmp_path: Path) -> Migrations:
    return next_release(tmp_path / "versions")


async def _register(database: Database, instance_id: str = ELSEWHERE) -> None:
    async with database.transaction() as session:
        await register_instance(session, instance_id, kind="executor")


async def _has_column(database: Database, column: str, table: str) -> bool:
    with suppress(StoreUnavailable):
        async with database.reading() as session:
            await session.execute(text(f"SELECT {column} FROM {table}"))
            return True
    return False


async def _add_dag(database: Database, dag_id: str) -> None:
    async with database.transaction() as session:
        session.add(
            Dag(
                dag_id=dag_id,
                path=f"{dag_id}.py",
                tags=[],
                max_active_runs=1,
                params={},
                tasks=[],
                is_paused=False,
                is_stale=False,
                updated_at=await database_now(session),
            )
        )


async def test_a_service_of_the_former_release_starts_and_works_beside_the_new_tables(
    database: Database, following: Migrations
) -> None:
    assert await upgrade(database, migrations=following)
    assert await current(database) == INDEX
    assert not await upgrade(database)
    assert (await check(database)).left == ()
    assert (await check(database, following)).left == (REMOVAL,)
    await _register(database)
    await _add_dag(database, "a")
    with anyio.move_on_after(0.1) as watching:
        await SchemaWatch(database, interval=timedelta(milliseconds=10)).run()
    assert watching.cancelled_caught


async def test_after_migrations_wait_until_no_instance_of_an_older_release_is_registered(
    database: Database, following: Migrations
) -> None:
    await _register(database)
    assert await upgrade(database, migrations=following)
    with pytest.raises(ConfigurationError, match=f"{REMOVAL} has to wait.*executor {ELSEWHERE} "):
        await upgrade(database, phase=Phase.AFTER, migrations=following)
    # Services of the previous release may continue, and start again.
    assert await current(database) == INDEX
    assert await _has_column(database, "description", "dag")
    assert not await upgrade(database)
    async with database.transaction() as session:
        await deregister_instance(session, ELSEWHERE)
    assert await upgrade(database, phase=Phase.AFTER, migrations=following)
    assert await current(database) == REMOVAL
    assert not await _has_column(database, "description", "dag")
    assert not await upgrade(database, phase=Phase.AFTER, migrations=following)


async def test_an_instance_of_the_new_release_does_not_hold_up_after_migrations(
    database: Database, following: Migrations
) -> None:
    await _register(database)
    async with database.transaction() as session:
        await session.execute(
            text("UPDATE instance SET revision = :newest"), {"newest": following.newest}
        )
    assert await upgrade(database, phase=Phase.AFTER, migrations=following)


async def test_an_instance_whose_process_is_gone_does_not_hold_up_after_migrations(
    database: Database, following: Migrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 4_194_304)
        gone = new_instance_id()
    await _register(database, gone)
    assert await upgrade(database, phase=Phase.AFTER, migrations=following)


async def test_a_service_alone_on_its_database_runs_what_an_older_release_left(
    database: Database, following: Migrations, tmp_path: Path
) -> None:
    third = f"{number(REMOVAL) + 1:04}_before_more"
    bodies = {COLUMN: "pass", REMOVAL: "pass", third: "pass"}
    newest = invented_release(tmp_path / "third", bodies)
    await _register(database)
    with pytest.raises(ConfigurationError, match="has to wait"):
        await upgrade(database, migrations=newest)
    assert await upgrade(database, migrations=newest, is_alone=True)
    assert await current(database) == third


async def test_a_service_too_old_for_the_tables_neither_starts_nor_continues(
    database: Database, following: Migrations
) -> None:
    assert await upgrade(database, phase=Phase.AFTER, migrations=following)
    sentence = f"newer than this release: they need a release with the migration {REMOVAL}"
    for refuse in (check(database), upgrade(database), SchemaWatch(database).run()):
        with pytest.raises(ConfigurationError, match=sentence) as refused:
            await refuse
        assert "install release" in str(refused.value.hint)


async def test_no_older_service_starts_between_the_demand_and_the_migration(
    database: Database,
) -> None:
    async with database.transaction() as session:
        await require(session, REMOVAL, REMOVAL, is_alone=False)
    with pytest.raises(ConfigurationError, match="newer than this release"):
        await upgrade(database)


async def test_a_running_service_stops_when_its_release_becomes_too_old(
    database: Database, following: Migrations
) -> None:
    async def upgrade_beside() -> None:
        async with anyio.create_task_group() as tasks:
            watch = SchemaWatch(database, interval=timedelta(milliseconds=10))
            await tasks.start(watch.run)
            await upgrade(database, phase=Phase.AFTER, migrations=following)
            with anyio.fail_after(20):
                await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as stopped:
        await upgrade_beside()
    assert stopped.group_contains(ConfigurationError, match="newer than this release")


async def test_an_after_migration_can_say_that_an_older_release_still_works(
    database: Database, tmp_path: Path
) -> None:
    following = next_release(tmp_path / "versions")
    script = following.folder / f"{REMOVAL}.py"
    demand = f'min_revision = "{THIS_RELEASE.newest}"\n'
    script.write_text(script.read_text().replace("depends_on", f"{demand}depends_on"))
    await _register(database)
    assert await upgrade(database, phase=Phase.AFTER, migrations=following)
    await check(database)


async def test_new_tables_get_all_migrations(empty_store_url: str, following: Migrations) -> None:
    told: list[tuple[str | None, str]] = []

    async def tell(_session: object, former: str | None, revision: str) -> None:
        told.append((former, revision))

    async with open_database(empty_store_url) as database:
        assert await upgrade(database, tell, migrations=following)
        assert await current(database) == following.newest
    revisions = following.revisions
    assert told == list(zip((None, *revisions), revisions, strict=False))


async def test_several_processes_that_migrate_at_once_take_turns(
    store_url: str, following: Migrations
) -> None:
    upgraded: list[bool] = []

    async def start() -> None:
        async with open_database(store_url) as database:
            upgraded.append(
                await upgrade(database, phase=Phase.AFTER, migrations=following, patience=SHORT)
            )

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(start)
    assert sorted(upgraded) == [False, False, True]


async def test_a_migration_lets_queries_pass_while_it_waits_for_a_lock(
    postgres: Database, postgres_url: str, following: Migrations
) -> None:
    async with (
        open_database(postgres_url) as other,
        anyio.create_task_group() as tasks,
    ):
        async with other.reading() as session:
            await session.execute(text("SELECT * FROM dag_file"))
            upgraded = anyio.Event()

            async def migrate() -> None:
                await upgrade(postgres, migrations=following, patience=SHORT)
                upgraded.set()

            tasks.start_soon(migrate)
            for _ in range(8):
                # If the migration waited for its lock without a limit, this query would hang behind the migration.
                with anyio.fail_after(5):
                    assert await _has_column(other, "path", "dag_file")
                await anyio.sleep(0.05)
            assert not upgraded.is_set()
        with anyio.fail_after(20):
            await upgraded.wait()
    assert await _has_column(postgres, "note", "dag_file")


async def test_a_migration_that_gets_no_lock_names_the_session_that_keeps_it(
    postgres: Database, postgres_url: str, following: Migrations
) -> None:
    patience = Patience(timedelta(milliseconds=50), pause=timedelta(), attempts=2)
    async with open_database(postgres_url) as other, other.reading() as session:
        await session.execute(text("SELECT * FROM dag_file"))
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
        with pytest.raises(
            StoreUnavailable, match=rf"{COLUMN} did not get a lock in 2 .*pid {pid} "
        ):
            await upgrade(postgres, migrations=following, patience=patience)


async def test_an_index_that_an_interrupted_migration_left_invalid_is_built_again(
    postgres: Database, following: Migrations
) -> None:
    async with postgres.transaction() as session:
        await session.execute(text("CREATE INDEX ix_dag_run_error ON dag_run (error)"))
        await session.execute(
            text(
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_dag_run_error'::regclass"
            )
        )
    await upgrade(postgres, migrations=following)
    async with postgres.reading() as session:
        assert await session.scalar(
            text("SELECT indisvalid FROM pg_index WHERE indexrelid = 'ix_dag_run_error'::regclass")
        )


async def test_an_instance_that_registers_during_the_demand_sees_it(
    postgres: Database, postgres_url: str, following: Migrations
) -> None:
    async with open_database(postgres_url) as old, anyio.create_task_group() as tasks:
        registered = anyio.Event()

        async def register() -> None:
            await _register(old)
            registered.set()

        async with postgres.transaction() as session:
            await require(session, REMOVAL, REMOVAL, is_alone=False)
            tasks.start_soon(register)
            await anyio.sleep(0.2)
            assert not registered.is_set()
        await registered.wait()
        with pytest.raises(ConfigurationError, match="newer than this release"):
            await SchemaWatch(old).run()


def test_migrations_are_named_after_their_phase_and_number_and_run_in_this_order() -> None:
    scripts = ScriptDirectory.from_config(configuration(THIS_RELEASE))
    in_order = [script.revision for script in scripts.walk_revisions()][::-1]
    assert in_order == list(THIS_RELEASE.revisions)
    assert [number(one) for one in in_order] == list(range(1, len(in_order) + 1))
    for revision in in_order:
        assert is_revision(revision)
        # Alembic's column for the revision has this width.
        assert len(revision) <= 32
        demanded = getattr(scripts.get_revision(revision).module, "min_revision", None)
        assert demanded is None or (is_after(revision) and demanded in in_order)


def test_a_before_migration_only_adds() -> None:
    assert list(disturbances(THIS_RELEASE)) == []


@pytest.mark.parametrize(
    ("body", "disturbs"),
    [
        ('op.add_column("dag", sa.Column("x", sa.Text()))', False),
        (
            'op.create_table("x", sa.Column("y", sa.Text())); op.create_index("ix_x", "x", ["y"])',
            False,
        ),
        ('indexes.create_index("ix_x", "dag", ["path"])', False),
        ('op.add_column("dag", sa.Column("x", sa.Text(), nullable=False))', True),
        ('op.drop_column("dag", "path")', True),
        ('op.create_index("ix_x", "dag", ["path"])', True),
        ('indexes.create_index("ix_x", "dag", ["path"], unique=True)', True),
        ('op.alter_column("dag", "path", type_=sa.Integer())', True),
        ('op.rename_table("dag", "dags")', True),
        ('op.execute("UPDATE dag SET is_paused = true")', True),
    ],
)
def test_the_check_of_before_migrations_finds_what_disturbs(
    tmp_path: Path, body: str, disturbs: bool
) -> None:
    found = list(disturbances(invented_release(tmp_path / "versions", {COLUMN: body})))
    assert bool(found) is disturbs
