"""Makes the SQLAlchemy engines for SQLite and PostgreSQL, and sets up their connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiosqlite
from sqlalchemy import URL, Connection, NullPool, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from triggerer.domain.text.json_text import dump_json, load_json
from triggerer.store.database.sqlite.connections import SqliteConnections

if TYPE_CHECKING:
    from triggerer.store.database.postgres.primary import Primary

# How long a SQLite write waits while another process writes, such as a command beside `triggerer standalone`. After
# this time, the recorder of events retries, and a command reports an error.
SQLITE_BUSY_TIMEOUT: Final = timedelta(seconds=3)
POSTGRES_POOL_SIZE: Final = 5
SQLITE_WRITER_PRAGMAS: Final = (
    # With SQLite's default page of 4 KiB, storing an event took 5 % more time. An existing file keeps its page size.
    "page_size=8192",
    "journal_mode=WAL",
    # The broker advances after a commit, so the commit must survive a power cut.
    "synchronous=FULL",
    "foreign_keys=ON",
    # Checkpoint after 2,000 pages (16 MiB). A checkpoint also calls fsync for the database's file, so it should be
    # rare under load.
    "wal_autocheckpoint=2000",
    "journal_size_limit=67108864",
    "cache_size=-16384",
    "temp_store=MEMORY",
)
SQLITE_READER_PRAGMAS: Final = ("query_only=ON", "temp_store=MEMORY", "cache_size=-4096")


def _dump(value: Any) -> str:
    return dump_json(value, "a value").decode()


# Statements that bypass SQLAlchemy use the same JSON functions, so that equal values are stored as equal strings.
_JSON: Final[Any] = {"json_serializer": _dump, "json_deserializer": load_json}


def sqlite_writer(
    url: URL, *, busy_timeout: timedelta, connections: SqliteConnections
) -> AsyncEngine:
    """Make an engine with one connection. Its transactions take SQLite's write lock at BEGIN.

    At BEGIN, SQLite waits up to `busy_timeout` for the lock. A transaction that reads first and takes the lock later
    does not wait: if another process has committed in between, it fails at once with SQLITE_BUSY.
    """
    pool = _Pool("BEGIN IMMEDIATE", SQLITE_WRITER_PRAGMAS, size=1, overflow=0)
    return _sqlite_engine(url, busy_timeout, connections, pool)


def sqlite_reader(
    url: URL, *, busy_timeout: timedelta, connections: SqliteConnections
) -> AsyncEngine:
    """Make an engine with a few connections that cannot write and never wait for the writer."""
    pool = _Pool("BEGIN", SQLITE_READER_PRAGMAS, size=2, overflow=2)
    return _sqlite_engine(url, busy_timeout, connections, pool)


class _Pool(NamedTuple):
    begin: str
    pragmas: Sequence[str]
    size: int
    overflow: int


def _sqlite_engine(
    url: URL, busy_timeout: timedelta, connections: SqliteConnections, pool: _Pool
) -> AsyncEngine:
    async def connect(path: str, **options: Any) -> aiosqlite.Connection:
        # With isolation_level=None, the driver begins no transactions. `begin_transaction` below begins them.
        options |= {"isolation_level": None, "timeout": busy_timeout.total_seconds()}
        return await connections.open(path, pragmas=pool.pragmas, **options)

    engine = create_async_engine(
        url,
        pool_size=pool.size,
        max_overflow=pool.overflow,
        connect_args={"async_creator_fn": connect},
        **_JSON,
    )
    # SQLAlchemy's own `do_terminate` closes a connection after a cancellation, in a new task that waits for the
    # connection's thread. A second cancellation would leave this task behind. `_stop` only asks the thread to end, and
    # `SqliteConnections` waits for the thread.
    engine.dialect.do_terminate = _stop  # type: ignore[method-assign]

    @event.listens_for(engine.sync_engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(pool.begin)

    return engine


def _stop(dbapi_connection: Any) -> None:
    dbapi_connection.driver_connection.stop()


def postgres_engine(primary: Primary, *, pool_size: int = POSTGRES_POOL_SIZE) -> AsyncEngine:
    """Make an engine with a small pool. A closed connection, or a connection to a former primary, is replaced."""
    engine = _postgres_engine(
        primary, primary.connect, pool_size=pool_size, max_overflow=pool_size, pool_timeout=30
    )

    @event.listens_for(engine.sync_engine, "checkout")
    def refuse_closed(connection: Any, _record: Any, _proxy: Any) -> None:
        # SQLAlchemy's `pool_pre_ping` would need a round trip before each transaction. This check needs none: a server
        # that restarts closes its sockets, and asyncpg notices that at once.
        if connection.driver_connection.is_closed():
            raise DisconnectionError("the server closed the connection")
        if not primary.is_current(connection.driver_connection):
            raise DisconnectionError("the server is no longer the primary")

    return engine


def postgres_autocommit_engine(primary: Primary) -> AsyncEngine:
    """Make an engine without a pool. Its connections open no transactions, and its statements have no timeout."""
    connect = partial(primary.connect, statement_timeout_s=None)
    return _postgres_engine(primary, connect, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def _postgres_engine(
    primary: Primary, opens: Callable[[], Awaitable[Any]], **options: Any
) -> AsyncEngine:
    # SQLAlchemy caches the prepared statements of these connections. So pass the size of the cache to SQLAlchemy.
    size = primary.statement_cache_size
    cache = {} if size is None else {"prepared_statement_cache_size": size}

    def connect() -> Any:
        dbapi: Any = engine.dialect.dbapi
        return dbapi.connect(async_creator_fn=opens, **cache)

    # `Primary` decides which server to connect to.
    engine = create_async_engine("postgresql+asyncpg://", creator=connect, **options, **_JSON)
    return engine
