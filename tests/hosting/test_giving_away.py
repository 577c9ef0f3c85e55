"""Giving streams away while other things happen to them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from sqlalchemy import update

from tests.hosting.test_host import CLASSES, LEASE, declare, hosting, owners
from tests.store.seeding import count_events, until
from tests.unit.streams.streams import Upstream
from triggerer.domain.events import Fence
from triggerer.hosting import TriggerHost
from triggerer.hosting.factory import TriggerFactory
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import Stream, Trigger
from triggerer.streams import RuntimeContext


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    async with open_database(sqlite_url) as opened:
        yield opened


async def _open_one(upstream: Upstream, name: str = "stuck", *, for_s: float = math.inf) -> None:
    """Publish an event, and return once the filter `name` has pulled it. The filter then sleeps for `for_s` seconds."""
    started = anyio.Event()

    async def hold(_: object) -> None:
        started.set()
        await anyio.sleep(for_s)

    upstream.on_filter[name] = hold
    upstream.put(0)
    with anyio.fail_after(30):
        await started.wait()


async def test_a_stream_lost_while_it_is_given_away_ends_nothing_else(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream)
    async with hosting(database) as host:
        (fence,) = host._owned.values()
        drain = host.manager.drain

        async def lost_meanwhile(*arguments: Any) -> None:
            host.mark_fenced(Fence(*fence))
            await drain(*arguments)

        host.manager.drain = lost_meanwhile  # type: ignore[method-assign]
        await host._give_back(["stream"])
        assert host.manager.streams == {}
        host.manager.drain = drain  # type: ignore[method-assign]
        # In the store the stream has no owner, so the next heartbeat claims it again.
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
    async with hosting(database) as host:
        await _open_one(upstream)
        with anyio.fail_after(LEASE.total_seconds() * 0.75):
            await host._give_back(["stream"])
        assert await owners(database) in ({"stream": None}, {"stream": "me"})
        assert upstream.advanced == []


async def test_outstanding_events_resolve_before_the_host_has_stopped(
    database: Database, upstream: Upstream
) -> None:
    """In an earlier version, cancelling the host also cancelled its streams, so nothing resolved outstanding events."""
    await declare(database, "slow", upstream)
    async with hosting(database):
        await _open_one(upstream, "slow", for_s=0.3)
        stopping = anyio.current_time()
    assert upstream.outcomes() == {0: (1, 0, 0)}
    assert await count_events(database) == 1
    # The host stops as soon as the event is resolved, although the drain may last two seconds.
    assert anyio.current_time() - stopping < 1.5
    assert await owners(database) == {"stream": None}


async def test_a_filter_that_does_not_resolve_in_time_is_cancelled_when_the_host_stops(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "stuck", upstream)
    async with hosting(database):
        await _open_one(upstream)
        stopping = anyio.current_time()
    assert 1.9 < anyio.current_time() - stopping < 4
    assert upstream.advanced == []
    assert upstream.closed == 1


@pytest.mark.parametrize("turns", range(8))
async def test_a_host_that_is_cancelled_as_it_starts_ends(database: Database, turns: int) -> None:
    """In the simulation, a shielded task once waited forever, because the task that should stop it never started."""
    recorder = EventRecorder(database, on_fenced=lambda _: None)
    host = TriggerHost(
        database,
        instance_id="me",
        factory=TriggerFactory(CLASSES.__getitem__),
        runtime=RuntimeContext(recorder),
    )
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.run)
            for _ in range(turns):
                await checkpoint()
            tasks.cancel_scope.cancel()
