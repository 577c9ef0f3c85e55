"""SQLAlchemy's engines for each database: which connections there are, and how they are set up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import aiosqlite
from sqlalchemy import URL, Connection, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

if TYPE_CHECKING:
    from triggerer.store.engine.postgres_primary import Primary

# How long a write waits for a writer in another process (a command beside a standalone). The
# recorder repeats its write; a command reports an error.
SQLITE_BUSY_TIMEOUT: Final = timedelta(seconds=3)
POSTGRES_POOL_SIZE: Final = 5
SQLITE_WRITER_PRAGMAS: Final = (
    "journal_mode=WAL",
    # A commit that the broker is told about must survive a power cut.
    "synchronous=FULL",
    "foreign_keys=ON",
    # 16 MiB. A checkpoint also syncs the database's file, so it should be rare under load.
    "wal_autocheckpoint=4000",
    "journal_size_limit=67108864",
    "cache_size=-16384",
    "temp_store=MEMORY",
)


class AbandonedConnections:
    """SQLite connections whose statement was cancelled, until their threads have ended.

    A thread cannot be cancelled: it finishes the statement, then rolls back and closes. SQLAlchemy would
    wait for that in a task of its own, which a second cancellation leaves behind. So SQLAlchemy only orders
    the end, and whoever closes the database waits for it.
    """

    def __init__(self) -> None:
        self._ending: set[asyncio.Future[Any]] = set()

    def abandon(self, dbapi_connection: Any) -> None:
        """Tell the thread of a pooled connection to end, without waiting for it."""
        self.add(dbapi_connection.driver_connection)

    def add(self, connection: aiosqlite.Connection) -> None:
        """The same for a connection of aiosqlite."""
        future: asyncio.Future[Any] | None = connection.stop()
        if future is not None:
            self._ending.add(future)
            future.add_done_callback(self._ending.discard)

    async def ended(self) -> None:
        """Return once all threads have ended."""
        if self._ending:
            await asyncio.wait(set(self._ending))


def sqlite_writer(
    url: URL, *, busy_timeout: timedelta, abandoned: AbandonedConnections
) -> AsyncEngine:
    """Make an engine with one connection, whose transactions take the write lock when they begin.

    A transaction that begins by reading fails at once (SQLITE_BUSY, whatever the timeout) if it writes after
    another writer has committed.
    """
    engine = _sqlite_engine(url, busy_timeout, abandoned, pool_size=1, max_overflow=0)
    return _set_up(engine, "BEGIN IMMEDIATE", *SQLITE_WRITER_PRAGMAS)


def sqlite_reader(
    url: URL, *, busy_timeout: timedelta, abandoned: AbandonedConnections
) -> AsyncEngine:
    """Make an engine with a few connections that cannot write, and do not wait for the writer."""
    engine = _sqlite_engine(url, busy_timeout, abandoned, pool_size=2, max_overflow=2)
    return _set_up(engine, "BEGIN", "query_only=ON", "temp_store=MEMORY", "cache_size=-4096")


def _sqlite_engine(
    url: URL, busy_timeout: timedelta, abandoned: AbandonedConnections, **pool: int
) -> AsyncEngine:
    engine = create_async_engine(
        url,
        **pool,
        # isolation_level=None: the driver begins no transaction by itself; `_set_up` does.
        connect_args={"isolation_level": None, "timeout": busy_timeout.total_seconds()},
    )
    engine.dialect.do_terminate = abandoned.abandon  # type: ignore[method-assign]
    return engine


def _set_up(engine: AsyncEngine, begin: str, *pragmas: str) -> AsyncEngine:
    @event.listens_for(engine.sync_engine, "connect")
    def apply_pragmas(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def postgres_engine(primary: Primary, *, pool_size: int = POSTGRES_POOL_SIZE) -> AsyncEngine:
    """Make an engine with a small pool, which gives no connection that is closed, or to a former primary."""
    # SQLAlchemy keeps its prepared statements itself, and knows the option by this name.
    size = primary.statement_cache_size
    cache = {} if size is None else {"prepared_statement_cache_size": size}

    def connect() -> Any:
        dbapi: Any = engine.dialect.dbapi
        return dbapi.connect(async_creator_fn=primary.connect, **cache)

    engine = create_async_engine(
        # Where to connect to is the primary's concern.
        "postgresql+asyncpg://",
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=30,
        creator=connect,
    )

    @event.listens_for(engine.sync_engine, "checkout")
    def refuse_closed(connection: Any, _record: Any, _proxy: Any) -> None:
        # When a server restarts, its sockets are closed, and asyncpg notices at once: the round trip of
        # `pool_pre_ping` before each transaction is not needed.
        if connection.driver_connection.is_closed():
            raise DisconnectionError("the server closed the connection")
        if not primary.is_current(connection.driver_connection):
            raise DisconnectionError("the server is not the primary any more")

    return engine
