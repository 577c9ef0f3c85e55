"""One instance's connection to the database. It may be cut while other instances reach the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from triggerer.errors import StoreUnavailable
from triggerer.synchronization import Notifier

if TYPE_CHECKING:
    from triggerer.store.database.script import Row, Script, Step
    from triggerer.testing.simulation.database.transactions import Database, Transaction

T = TypeVar("T")


class Connection:
    """Stands in for `Database` in one instance."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_cut_off = False
        self._restored = Notifier()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def cut_off(self) -> None:
        """From now on, let each request fail or get no answer."""
        self._is_cut_off = True

    def restore(self) -> None:
        self._is_cut_off = False
        self._restored.notify_all()

    async def _pass(self) -> None:
        if not self._is_cut_off:
            return
        if self._database.store.faults.random.random() < 0.5:
            # The request gets no answer until the network is back.
            while self._is_cut_off:
                await self._restored.wait()
        raise StoreUnavailable("this instance is cut off from the database")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        await self._pass()
        async with self._database.transaction() as session:
            yield session

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Transaction]:
        await self._pass()
        async with self._database.reading() as session:
            yield session

    async def perform(self, script: Script[T]) -> T:
        await self._pass()
        return await self._database.perform(script)

    async def perform_step(self, step: Step) -> list[Row]:
        await self._pass()
        return await self._database.perform_step(step)
