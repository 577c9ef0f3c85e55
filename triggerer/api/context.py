"""The state that all handlers share: the settings, the database, and the limits on its use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
from sqlalchemy import text

from triggerer.errors import NothingThere, ServerBusy, UnknownName
from triggerer.store.access.service_key import service_key
from triggerer.store.listing.unknown import with_suggestion

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.api.access.oidc import OidcProvider
    from triggerer.config import Settings
    from triggerer.store.database.transactions import Database

MOST_INSIDE: Final = 16
"""The most requests that use the database or wait for a connection. Further requests get 503."""
POOL_SIZE: Final = 4
STATEMENT_TIMEOUT: Final = timedelta(seconds=5)
_INTERRUPT_EVERY_S: Final = 0.1


class DatabaseUse:
    """Gives requests access to the database: few requests at once, and each for a short time.

    During a long read, PostgreSQL cannot remove old versions of rows (vacuum). The old versions slow down all queries.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inside = 0
        self._reads = anyio.Semaphore(POOL_SIZE)
        # SQLite makes one change at a time, so the others would only keep reads from working while they wait.
        self._changes = self._reads if database.dialect == "postgresql" else anyio.Semaphore(1)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """Yield a session that cannot write.

        Raises:
            ServerBusy: Too many requests use the database.
            StoreUnavailable: The database does not answer, or stopped a query because of `STATEMENT_TIMEOUT`.
        """
        async with (
            self._admit(self._reads),
            self._explaining(),
            self._database.reading() as session,
        ):
            await self._limit(session)
            with await _interrupted_in_time(session):
                yield session

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[AsyncSession]:
        """Yield a session whose work is committed at the end of the block.

        Raises:
            ServerBusy: Too many requests use the database. Nothing was written.
            StoreUnavailable: The database does not answer, or (only on PostgreSQL) stopped a query because of
                `STATEMENT_TIMEOUT`. Nothing was written.
        """
        async with (
            self._admit(self._changes),
            self._explaining(),
            self._database.transaction() as session,
        ):
            await self._limit(session)
            yield session

    @asynccontextmanager
    async def _admit(self, limiter: anyio.Semaphore) -> AsyncIterator[None]:
        if self._inside >= MOST_INSIDE:
            raise ServerBusy(
                f"the API has {MOST_INSIDE} requests at work", hint="ask again in a second"
            )
        self._inside += 1
        try:
            async with limiter:
                yield
        finally:
            self._inside -= 1

    @asynccontextmanager
    async def _explaining(self) -> AsyncIterator[None]:
        """If the block raises an error about an unknown name, add the nearest known name to the error."""
        try:
            yield
        except UnknownName as error:
            async with self._database.reading() as session:
                explained = await with_suggestion(session, error)
            raise explained from error

    async def _limit(self, session: AsyncSession) -> None:
        if self._database.dialect == "postgresql":
            milliseconds = int(STATEMENT_TIMEOUT.total_seconds() * 1000)
            await session.execute(text(f"SET LOCAL statement_timeout = {milliseconds}"))


async def _interrupted_in_time(session: AsyncSession) -> AbstractContextManager[None]:
    """Return a context manager that, on SQLite, stops all queries once the block has taken `STATEMENT_TIMEOUT`.

    On PostgreSQL the context manager does nothing, because `DatabaseUse` sets `statement_timeout`.
    """
    if session.get_bind().dialect.name != "sqlite":
        return nullcontext()
    connection = await (await session.connection()).get_raw_connection()
    driver = connection.driver_connection
    assert driver is not None

    async def interrupt() -> None:
        await anyio.sleep(STATEMENT_TIMEOUT.total_seconds())
        while True:
            # The interrupted query fails, and the connection stays usable. Without a running query, an interrupt has no
            # effect, and the block may send a query later.
            await driver.interrupt()
            await anyio.sleep(_INTERRUPT_EVERY_S)

    @contextmanager
    def limited() -> Iterator[None]:
        interrupting = asyncio.create_task(interrupt())
        try:
            yield
        finally:
            interrupting.cancel()

    return limited()


@dataclass(slots=True)
class ApiContext:
    """The state of the API's process."""

    settings: Settings
    database: Database
    use: DatabaseUse
    closing: anyio.Event = field(default_factory=anyio.Event)
    """Set when the process begins to stop. Then streamed answers, such as logs with `follow=true`, must end."""
    _followers: int = 0
    _key: bytes | None = None
    _oidc: OidcProvider | None = None

    async def service_key(self) -> bytes:
        """Return the key that all services of this database share. It signs their requests to one another."""
        if self._key is None:
            self._key = await service_key(self.database)
        return self._key

    async def oidc(self) -> OidcProvider:
        """Return the OpenID Connect provider.

        Raises:
            NothingThere: No provider is configured.
        """
        if not self.settings.api.oidc.issuer:
            raise NothingThere("no OpenID Connect provider is configured", hint="see [api.oidc]")
        if self._oidc is None:
            from triggerer.api.access.oidc import OidcProvider

            self._oidc = OidcProvider(self.settings, await self.service_key())
        return self._oidc

    def refuse_followers(self, most: int) -> None:
        """Refuse another streamed answer, with status 503, if there are too many. Call this before headers are sent.

        Raises:
            ServerBusy: `most` clients receive a streamed answer already.
        """
        if self._followers >= most:
            raise ServerBusy(f"{most} streams are open already", hint="close another page")

    @contextmanager
    def following(self, most: int) -> Iterator[None]:
        """Count this client among the receivers of streamed answers during the block.

        Raises:
            ServerBusy: `most` clients receive a streamed answer already.
        """
        self.refuse_followers(most)
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1
