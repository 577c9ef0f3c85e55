"""An instance that is cut off from the database, but not from the broker, stops before others may take over."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from structlog.testing import capture_logs

from tests.hosting.test_host import LEASE, declare, eventually, hosting, owners, watchers
from tests.store.seeding import count_events, until
from tests.unit.streams.streams import Upstream
from triggerer.errors import StoreUnavailable
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database

pytestmark = pytest.mark.rule(
    "15: an owner stops by its own clock, before another instance may begin"
)


class CutOff:
    """A database that one instance cannot reach for a while."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_reachable = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[Any]:
        self._check()
        async with self._database.transaction(**options) as session:
            yield session

    async def perform_step(self, *arguments: Any) -> Any:
        self._check()
        return await self._database.perform_step(*arguments)

    async def perform(self, *arguments: Any) -> Any:
        self._check()
        return await self._database.perform(*arguments)

    def _check(self) -> None:
        if not self.is_reachable:
            raise StoreUnavailable("cut off")


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with open_database(postgres_url) as opened:
        yield opened


@pytest.fixture
async def cut_off(postgres_url: str) -> AsyncIterator[CutOff]:
    async with open_database(postgres_url) as opened:
        yield CutOff(opened)


async def test_it_leaves_the_broker_before_another_instance_owns_its_streams(
    database: Database, cut_off: CutOff, upstream: Upstream
) -> None:
    await declare(database, "old", upstream, only=["old"])
    async with hosting(cast("Database", cut_off), "first") as first:
        await until(lambda: len(upstream.producers) == 1)
        async with hosting(database, "second") as second:
            cut_off.is_reachable = False
            # "first" is cut off, so it cannot learn of this watcher. Only "second" can make an event of the message
            # "new".
            await declare(database, "new", upstream, only=["new"])

            async def is_taken_over() -> bool:
                if second.manager.streams:
                    assert not first.manager.streams
                    assert upstream.closed == 1
                return bool(second.manager.streams)

            with capture_logs() as logs:
                await eventually(is_taken_over)
            assert any("over: they stop" in log["event"] for log in logs)
            upstream.put("old", "new")
            await until(lambda: upstream.outcomes().keys() == {"old", "new"})
            assert await count_events(database) == 2
            cut_off.is_reachable = True
            await anyio.sleep(1)
            assert await owners(database) == {"stream": "second"}
            assert await count_events(database) == 2


async def test_it_takes_its_streams_up_again_when_nobody_else_did(
    database: Database, cut_off: CutOff, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with hosting(cast("Database", cut_off), "first") as first:
        upstream.put(1)
        await until(lambda: len(upstream.outcomes()) == 1)
        cut_off.is_reachable = False
        await until(lambda: upstream.closed == 1)
        assert not first.manager.streams
        upstream.put(2)
        await anyio.sleep(0.5)
        assert upstream.outcomes().keys() == {1}
        cut_off.is_reachable = True
        await until(lambda: upstream.outcomes().keys() == {1, 2})
        assert await count_events(database) == 2

        async def is_shown() -> bool:
            return (await watchers(database))["one"] == ("running", None, "first")

        await eventually(is_shown)


async def test_after_its_loop_stood_still_it_looks_before_it_acts(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    advanced_late: list[object] = []
    async with hosting(database, "first"):
        await until(lambda: len(upstream.producers) == 1)

        async def on_advance(batch: Any) -> None:
            if len(upstream.producers) == 1:
                advanced_late.append(batch)

        upstream.on_advance = on_advance
        upstream.put(1)
        # Block the event loop for longer than the lease, like a blocking call or SIGSTOP.
        time.sleep(LEASE.total_seconds() + 0.5)
        await until(lambda: len(upstream.producers) == 2)
        assert advanced_late == []


async def test_a_short_outage_stops_nothing(
    database: Database, cut_off: CutOff, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with hosting(cast("Database", cut_off), "first"):
        await until(lambda: len(upstream.producers) == 1)
        cut_off.is_reachable = False
        await anyio.sleep(0.8)
        cut_off.is_reachable = True
        upstream.put(1)
        await until(lambda: len(upstream.outcomes()) == 1)
        await anyio.sleep(1)
        assert len(upstream.producers) == 1
        assert upstream.closed == 0
