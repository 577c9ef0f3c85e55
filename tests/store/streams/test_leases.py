from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from sqlalchemy import select, text, update

from tests.store.seeding import Event, add_asset, count_events, record, recording
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.errors import LeaseLost
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.schema.models import Instance, Stream
from triggerer.store.streams.leases import (
    claim_streams,
    deregister_instance,
    extend_leases,
    forget_instances,
    live_instances,
    owned_streams,
    register_instance,
    release_streams,
)


async def _streams(database: Database, count: int) -> None:
    async with database.transaction() as session:
        for number in range(count):
            session.add(Stream(digest=f"s{number:02}", key=f"stream {number}", epoch=0))


async def _claim(database: Database, instance: str, limit: int = 100) -> list[Fence]:
    async with database.transaction() as session:
        # Each stream has one trigger, and the instance has room for all of them.
        sizes = dict.fromkeys((f"s{number:02}" for number in range(100)), 1)
        return await claim_streams(session, instance, limit=limit, room=100, sizes=sizes)


async def _expire(database: Database) -> None:
    async with database.transaction() as session:
        past = await database_now(session) - timedelta(seconds=1)
        await session.execute(update(Stream).values(expires_at=past))
        await session.execute(update(Instance).values(expires_at=past))


@pytest.fixture
async def other(store_url: str, database: Database) -> AsyncIterator[Database]:
    """A second connection to the same store, as another instance has."""
    async with open_database(store_url) as opened:
        yield opened


@pytest.mark.rule(
    "15: a stream has one owner, by a lease with an epoch; another instance may take over"
)
async def test_a_stream_is_claimed_by_one_instance(database: Database, other: Database) -> None:
    await _streams(database, 3)
    first = await _claim(database, "one", 2)
    assert first == [Fence("s00", "one", 1), Fence("s01", "one", 1)]
    assert await _claim(other, "two") == [Fence("s02", "two", 1)]
    assert await _claim(database, "one") == []
    assert await _claim(database, "one", 0) == []


@pytest.mark.rule("two processes claim the same stream")
async def test_instances_that_claim_at_the_same_moment_get_different_streams(
    database: Database, other: Database
) -> None:
    await _streams(database, 40)
    got: dict[str, list[Fence]] = {"one": [], "two": []}

    async def claim(name: str, store: Database) -> None:
        for _ in range(10):
            got[name] += await _claim(store, name, 3)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(claim, "one", database)
        tasks.start_soon(claim, "two", other)
    digests = [fence.stream_digest for fences in got.values() for fence in fences]
    assert sorted(digests) == [f"s{number:02}" for number in range(40)]


@pytest.mark.rule(
    "15: a stream has one owner, by a lease with an epoch; another instance may take over"
)
async def test_an_expired_lease_is_taken_over_with_a_new_epoch(database: Database) -> None:
    await _streams(database, 1)
    (mine,) = await _claim(database, "one")
    await _expire(database)
    (theirs,) = await _claim(database, "two")
    assert theirs == Fence(mine.stream_digest, "two", mine.epoch + 1)
    async with database.transaction() as session:
        assert await extend_leases(session, [mine]) == []
        await release_streams(session, [mine])
    async with database.reading() as session:
        assert await owned_streams(session, "two") == [theirs]


async def test_an_owner_that_was_fenced_can_write_nothing(database: Database) -> None:
    await add_asset(database, 1, "flights")
    await _streams(database, 1)
    (mine,) = await _claim(database, "one")
    await _expire(database)
    # The lease has expired, and nobody has claimed the stream. So this owner may still write.
    late = Event("late", source=EventSource((WatcherRef(7, 1),), mine))
    (theirs,) = [fence async for fence in _after(database, late)]
    fenced = Event("fenced", source=EventSource((WatcherRef(7, 1),), mine))
    valid = Event("valid", source=EventSource((WatcherRef(7, 1),), theirs))
    async with recording(database) as recorder:
        await record(recorder, fenced, valid)
    assert late.error is None
    assert isinstance(fenced.error, LeaseLost)
    assert valid.error is None
    assert await count_events(database) == 2


async def _after(database: Database, event: Event) -> AsyncIterator[Fence]:
    async with recording(database) as recorder:
        await record(recorder, event)
    for fence in await _claim(database, "two"):
        yield fence


async def test_extending_keeps_a_lease_and_releasing_frees_it(
    database: Database, other: Database
) -> None:
    await _streams(database, 2)
    mine = await _claim(database, "one")
    await _expire(database)
    async with database.transaction() as session:
        assert await extend_leases(session, mine) == mine
    assert await _claim(other, "two") == []
    async with database.transaction() as session:
        await release_streams(session, mine[:1])
    assert await _claim(other, "two") == [Fence("s00", "two", 2)]


async def test_an_instance_lives_while_its_heart_beats(database: Database) -> None:
    async with database.transaction() as session:
        await register_instance(session, "b", kind="triggerer")
        await register_instance(session, "a", kind="triggerer")
        await register_instance(session, "c", kind="executor")
    async with database.reading() as session:
        assert await live_instances(session, kind="triggerer") == ["a", "b"]
    await _expire(database)
    async with database.transaction() as session:
        await register_instance(session, "b", kind="triggerer")
        assert await live_instances(session, kind="triggerer") == ["b"]


async def test_an_instance_that_leaves_frees_its_streams_at_once(database: Database) -> None:
    await _streams(database, 2)
    async with database.transaction() as session:
        await register_instance(session, "one", kind="triggerer")
    await _claim(database, "one")
    async with database.transaction() as session:
        await deregister_instance(session, "one")
        assert await live_instances(session, kind="triggerer") == []
    assert len(await _claim(database, "two")) == 2


async def test_a_standalone_that_was_killed_is_followed_at_once(sqlite: Database) -> None:
    await _streams(sqlite, 1)
    await _claim(sqlite, "killed")
    async with sqlite.transaction() as session:
        await forget_instances(session)
    assert await _claim(sqlite, "next") == [Fence("s00", "next", 2)]


@pytest.mark.rule(
    "15: a stream has one owner, by a lease with an epoch; another instance may take over"
)
async def test_sqlites_leases_go_by_the_clock_that_is_given(sqlite_url: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    async with open_database(sqlite_url, now=lambda: now) as database:
        await _streams(database, 1)
        await _claim(database, "one")
        now += timedelta(seconds=14)
        assert await _claim(database, "two") == []
        now += timedelta(seconds=1)
        assert await _claim(database, "two") == [Fence("s00", "two", 2)]


async def test_only_streams_that_may_be_claimed_and_fit_are_claimed(database: Database) -> None:
    await _streams(database, 5)
    sizes = {"s00": 3, "s01": 3, "s02": 9, "s04": 2}
    async with database.transaction() as session:
        claimed = await claim_streams(session, "one", limit=9, room=5, sizes=sizes)
    # s01 does not fit beside s00, s02 would not fit at all, s03 was not asked for.
    assert [fence.stream_digest for fence in claimed] == ["s00", "s04"]


async def test_a_heartbeat_moves_the_expiry_alone(database: Database) -> None:
    async with database.transaction() as session:
        await register_instance(session, "one", kind="executor")
    async with database.reading() as session:
        (first,) = await session.scalars(select(Instance))
    await anyio.sleep(0.01)
    async with database.transaction() as session:
        await register_instance(session, "one", kind="executor")
    async with database.reading() as session:
        (second,) = await session.scalars(select(Instance))
    assert second.started_at == first.started_at
    assert second.expires_at > first.expires_at


async def test_an_instance_that_died_long_ago_is_deleted(database: Database) -> None:
    async with database.transaction() as session:
        now = await database_now(session)
        for instance_id, age in (("old", timedelta(days=2)), ("late", timedelta(hours=1))):
            session.add(
                Instance(
                    id=instance_id, kind="triggerer", started_at=now - age, expires_at=now - age
                )
            )
    async with database.transaction() as session:
        await register_instance(session, "one", kind="executor")
    async with database.reading() as session:
        assert set(await session.scalars(select(Instance.id))) == {"late", "one"}


async def test_thousands_of_leases_are_extended_at_once(postgres: Database) -> None:
    """In an earlier version, PostgreSQL refused to extend 10,000 leases at once: "stack depth limit exceeded".

    Here this limit is low, so that 1,000 leases suffice.
    """
    fences = [Fence(f"s{number:04}", "me", 1) for number in range(1_000)]
    lost = fences[0]._replace(epoch=2)
    async with postgres.transaction() as session:
        session.add_all(
            Stream(digest=one.stream_digest, key="", owner=one.owner, epoch=one.epoch)
            for one in fences
        )
        await session.flush()
        await session.execute(text("SET LOCAL max_stack_depth = '150kB'"))
        assert await extend_leases(session, [lost, *fences[1:]]) == fences[1:]
