import errno
import multiprocessing
import os
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from tests.services.databases.postgres import PostgresServer
from tests.services.process import free_ports
from triggerer.errors import ConfigurationError, StoreUnavailable
from triggerer.store.database.driver_errors import translate
from triggerer.store.database.opening import open_database
from triggerer.store.database.postgres import primary as postgres_primary
from triggerer.store.database.sqlite.exclusive import lock_exclusively
from triggerer.store.database.sqlite.file import beside
from triggerer.store.database.transactions import Database
from triggerer.store.database.urls import parse_database_url
from triggerer.store.schema.migrate import upgrade


async def _open(url: str, **options: bool) -> None:
    async with open_database(url, **options):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("not a url", "cannot be read"),
        ("mysql://localhost/x", "not supported"),
        ("postgresql+psycopg2://localhost/x", r"postgresql\+asyncpg://"),
        ("sqlite://", "a file"),
        ("sqlite:///:memory:", "a file"),
        ("sqlite://var/lib/x.db", "four"),
    ],
)
async def test_the_error_of_a_bad_url_shows_a_good_one(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        await _open(url)


def test_the_password_is_in_no_message() -> None:
    from triggerer.store.database.urls import describe

    assert "secret" not in describe(parse_database_url("postgresql://me:secret@host/db"))


def test_libpqs_name_for_tls_is_understood() -> None:
    url = parse_database_url("postgres://host/db?sslmode=require")
    assert dict(url.query) == {"ssl": "require"}


def test_a_relative_path_starts_in_home(tmp_path: Path) -> None:
    url = parse_database_url("sqlite:///some/x.db", home=tmp_path)
    assert url.database == str(tmp_path / "some" / "x.db")


async def test_a_postgresql_that_is_not_there_is_unavailable() -> None:
    (port,) = free_ports(1)
    with pytest.raises(StoreUnavailable, match="is it running"):
        await _open(f"postgresql://postgres@127.0.0.1:{port}/x")


async def test_a_database_that_the_server_does_not_have_is_a_wrong_setting(
    postgres_server: PostgresServer,
) -> None:
    with pytest.raises(ConfigurationError, match="create the database"):
        await _open(postgres_server.url("nowhere"))


async def test_a_user_that_the_server_does_not_have_is_a_wrong_setting(
    postgres_server: PostgresServer,
) -> None:
    url = f"postgresql://nobody_known@127.0.0.1:{postgres_server.port}/postgres"
    with pytest.raises(ConfigurationError, match="check user and password"):
        await _open(url)


async def test_an_option_that_the_driver_does_not_know_is_a_wrong_setting(
    postgres_url: str,
) -> None:
    with pytest.raises(ConfigurationError, match="options in the URL"):
        await _open(postgres_url + "?colour=red")


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 1_000)
    with pytest.raises(ConfigurationError, match="not a SQLite database"):
        await _open(f"sqlite:///{path}")


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be created"):
        await _open(f"sqlite:///{tmp_path / 'file' / 'x.db'}")


async def test_a_file_that_cannot_be_looked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: File name too long"):
        await _open(f"sqlite:///{tmp_path / ('x' * 300) / 'x.db'}")


async def test_where_no_file_descriptor_is_left_the_hint_does_not_doubt_the_server() -> None:
    error = translate(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "the database")
    assert isinstance(error, StoreUnavailable)
    assert "ulimit -n" in str(error.hint)


async def test_a_database_that_cannot_be_opened_raises_and_logs_nothing() -> None:
    (port,) = free_ports(1)
    with capture_logs() as logs, pytest.raises(StoreUnavailable):
        await _open(f"postgresql://me@127.0.0.1:{port}/db")
    assert logs == []


async def test_a_database_file_is_created_for_its_user_alone_under_any_umask(
    tmp_path: Path,
) -> None:
    path = tmp_path / "home" / "x.db"
    umask = os.umask(0)
    try:
        async with open_database(f"sqlite:///{path}") as database:
            with lock_exclusively(database):
                await upgrade(database)
                modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {"x.db", "x.db-wal", "x.db-shm", "x.db.lock"} <= modes.keys()
    assert set(modes.values()) == {0o600}


async def test_a_database_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.touch(0o640)
    path.chmod(0o640)
    async with open_database(f"sqlite:///{path}") as database:
        await upgrade(database)
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_command_that_only_reads_makes_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(ConfigurationError, match="there is no database"):
        await _open(f"sqlite:///{path}", create=False)
    assert not path.exists()


async def test_reading_cannot_write(store_url: str) -> None:
    from sqlalchemy import text

    from triggerer.errors import TriggererError

    async with open_database(store_url) as database:
        async with database.transaction() as session:
            await session.execute(text("CREATE TABLE t (n INTEGER)"))
        with pytest.raises(TriggererError, match="read"):
            async with database.reading() as session:
                await session.execute(text("INSERT INTO t VALUES (1)"))
        async with database.transaction() as session:
            assert await session.scalar(text("SELECT count(*) FROM t")) == 0


async def test_writers_on_sqlite_take_turns_in_order(sqlite_url: str) -> None:
    order: list[int] = []
    async with open_database(sqlite_url) as database:

        async def write(number: int) -> None:
            async with database.transaction():
                order.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(write, number)
    assert order == list(range(20))


def _hold(url: str, held: ProcessEvent, release: ProcessEvent) -> None:
    async def hold() -> None:
        async with open_database(url) as database:
            with lock_exclusively(database, purpose="the test"):
                held.set()
                await anyio.to_thread.run_sync(release.wait)

    anyio.run(hold)


async def test_a_second_service_on_a_sqlite_database_is_refused_by_name(sqlite_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(sqlite_url, held, release))
    process.start()
    try:
        assert await anyio.to_thread.run_sync(held.wait, 30)
        async with open_database(sqlite_url) as database:
            with (
                pytest.raises(ConfigurationError, match=f"pid {process.pid} .the test"),
                lock_exclusively(database),
            ):
                pass
            # A reader needs no lock.
            async with database.reading():
                pass
            # A killed process holds no lock.
            process.kill()
            await anyio.to_thread.run_sync(process.join)
            with lock_exclusively(database):
                pass
    finally:
        process.kill()
        process.join()


async def test_a_second_service_is_refused_also_by_the_name_of_a_link(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with open_database(sqlite_url) as database:
        assert database.path is not None
        link = tmp_path / "link.db"
        link.symlink_to(database.path)
        async with open_database(f"sqlite:///{link}") as other:
            with (
                lock_exclusively(database),
                pytest.raises(ConfigurationError, match="in use by another service"),
                lock_exclusively(other),
            ):
                pass
            assert other.transport.socket_path == database.transport.socket_path


async def test_a_lock_that_cannot_be_opened_is_an_error_that_names_it(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        assert database.path is not None
        # A folder stands for a lock file of another user: not even root can open a folder as a file.
        lock = beside(database.path, ".lock")
        lock.mkdir()
        with (
            pytest.raises(ConfigurationError, match=f"cannot be locked: {lock}: Is a directory"),
            lock_exclusively(database),
        ):
            pass


async def test_postgresql_needs_no_lock(postgres_url: str) -> None:
    async with open_database(postgres_url) as database:
        with lock_exclusively(database), lock_exclusively(database):
            pass


async def test_transactions_see_what_others_commit_whatever_the_servers_default_is(
    postgres_url: str,
) -> None:
    async with open_database(postgres_url) as database, database.transaction() as session:
        name = await session.scalar(text("SELECT current_database()"))
        await session.execute(
            text(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
        )
    async with open_database(postgres_url) as database:
        async with database.reading() as session:
            assert await session.scalar(text("SHOW transaction_isolation")) == "read committed"
        async with database.transaction() as session:
            assert await session.scalar(text("SHOW transaction_isolation")) == "read committed"


async def test_a_process_stopped_in_a_transaction_does_not_keep_its_locks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(postgres_url) as database, database.reading() as session:
        shown = await session.scalar(text("SHOW idle_in_transaction_session_timeout"))
        assert shown == "10s"
    monkeypatch.setitem(postgres_primary.SETTINGS, "idle_in_transaction_session_timeout", "200")
    lock = text("LOCK TABLE stream IN ACCESS EXCLUSIVE MODE")

    async def stop_while_it_is_locked(stopped: Database, other: Database) -> None:
        async with stopped.transaction() as held:
            await held.execute(lock)
            with anyio.fail_after(30):
                async with other.transaction() as session:
                    await session.execute(lock)
            await held.execute(text("SELECT 1"))

    async with open_database(postgres_url) as stopped, open_database(postgres_url) as other:
        with pytest.raises(StoreUnavailable):
            await stop_while_it_is_locked(stopped, other)
