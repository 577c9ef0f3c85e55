"""Giving streams away while other things happen to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from sqlalchemy import update

from tests.hosting.test_host import declare, hosting, owners
from tests.store.seeding import until
from tests.unit.runtime.streams import Upstream
from triggerer.domain.events import Fence
from triggerer.store.database import Database, open_database
from triggerer.store.migrate import upgrade
from triggerer.store.models import Stream, Trigger
from triggerer.store.wakeups import Signal, announce


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    async with open_database(sqlite_url) as opened:
        await upgrade(opened)
        yield opened


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    return Upstream(request.node.name)


async def test_a_stream_lost_while_it_is_given_away_ends_nothing_else(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with hosting(database) as host:
        (fence,) = host._owned.values()
        drain = host.manager.drain

        async def lost_meanwhile(*arguments: Any) -> None:
            host.note_fenced(Fence(*fence))
            await drain(*arguments)

        host.manager.drain = lost_meanwhile  # type: ignore[method-assign]
        await host._give_back(["stream"])
        assert host.manager.streams == {}
        host.manager.drain = drain  # type: ignore[method-assign]
        # It was nobody's in truth, so that the next heartbeat finds it again.
        await until(lambda: bool(host.manager.streams))


async def test_a_trigger_that_moved_to_another_stream_runs_under_that_streams_lease(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with hosting(database) as host:
        async with database.transaction() as session:
            session.add(Stream(digest="other", key="other"))
            await session.flush()
            await session.execute(update(Trigger).values(stream_digest="other"))
            announce(session, Signal.STREAMS_CHANGED, "stream", "other")
        await until(lambda: len(host._roster.on_stream("other")) == 1)
        assert host._roster.on_stream("stream") == []
        upstream.put(1)
        await until(lambda: upstream.outcomes() == {1: (1, 0, 0)})


async def test_giving_a_stream_away_leaves_time_to_extend_the_leases_that_are_kept(
    database: Database, upstream: Upstream
) -> None:
    """A drain that lasts as long as a lease would cost this instance all of its streams."""
    await declare(database, "stuck", upstream)
    started = anyio.Event()

    async def stuck(_: object) -> None:
        started.set()
        await anyio.sleep_forever()

    upstream.on_filter["stuck"] = stuck
    async with hosting(database) as host:
        upstream.put(0)
        with anyio.fail_after(5):
            await started.wait()
        with anyio.fail_after(1.5):
            await host._give_back(["stream"])
        assert await owners(database) in ({"stream": None}, {"stream": "me"})
        assert upstream.advanced == []
