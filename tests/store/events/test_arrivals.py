"""A follower of asset events gets every event, though ids do not follow the order of commits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import anyio
import pytest
from sqlalchemy import text

from tests.store.seeding import add_asset, emit
from triggerer.errors import CursorRefused
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.following import follow_asset_events
from triggerer.store.listing.views import AssetEventView


class Follower:
    """A client that follows asset events. `known` has each event once; `received` counts repeats, too."""

    def __init__(self, database: Database, *, limit: int = 7, is_from_now: bool = False) -> None:
        self._database = database
        self._limit = limit
        self._is_from_now = is_from_now
        self.cursor: str | None = None
        self.known: dict[int, AssetEventView] = {}
        self.received = 0

    async def read(self) -> int:
        """Read one page; return its number of events."""
        async with self._database.reading() as session:
            page = await follow_asset_events(
                session,
                limit=self._limit,
                after=self.cursor,
                is_from_now=self._is_from_now,
            )
        assert page.next_cursor is not None
        self.cursor = page.next_cursor
        self.received += len(page.items)
        self.known.update({event.id: event for event in page.items})
        return len(page.items)


async def test_a_follower_gets_the_past_then_the_present_and_a_later_one_only_the_present(
    database: Database,
) -> None:
    await add_asset(database, 1, "a")
    past = await emit(database, 1, 20)
    whole, late = Follower(database), Follower(database, is_from_now=True)
    for _ in range(4):
        await whole.read()
    await late.read()
    present = await emit(database, 1, 20)
    for _ in range(10):
        await whole.read()
        await late.read()
    assert sorted(whole.known) == [*past, *present]
    assert set(present) <= late.known.keys()
    if database.dialect == "sqlite":
        # On SQLite, ids are in the order of the commits, so no event comes twice.
        assert whole.received == 40
        assert sorted(late.known) == present


async def test_a_cursor_of_another_filter_or_list_is_refused(database: Database) -> None:
    await add_asset(database, 1, "a")
    async with database.reading() as session:
        page = await follow_asset_events(session)
        with pytest.raises(CursorRefused, match="other filters"):
            await follow_asset_events(session, after=page.next_cursor, asset="a")
        with pytest.raises(CursorRefused):
            await follow_asset_events(session, after="AAAA")


async def test_events_that_were_submitted_long_ago_do_not_hide_a_transaction_that_is_still_open(
    postgres: Database,
) -> None:
    """After a long outage of the database, events are written whose timestamps are old."""
    await add_asset(postgres, 1, "a")
    await add_asset(postgres, 2, "b")
    follower = Follower(postgres)
    async with anyio.create_task_group() as tasks, postgres.transaction() as session:
        lower = await record_events(session, [NewAssetEvent(1)])
        async with postgres.transaction() as other:
            old = datetime.now(UTC) - timedelta(hours=1)
            higher = await record_events(other, [NewAssetEvent(2, timestamp=old)])
        tasks.start_soon(follower.read)
        # The lower transaction stays open until the follower has looked for open transactions.
        waiting = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE '%FROM pg_locks%' AND pid <> pg_backend_pid()"
        )
        with anyio.fail_after(30):
            while True:
                # A transaction sees the activity as it was at its first look.
                async with postgres.reading() as reading:
                    if await reading.scalar(waiting):
                        break
                await anyio.sleep(0.01)
    assert lower < higher
    for _ in range(3):
        await follower.read()
    assert sorted(follower.known) == [*lower, *higher]


async def test_a_follower_does_not_wait_long_for_a_transaction_that_does_not_end_and_misses_nothing(
    postgres: Database,
) -> None:
    await add_asset(postgres, 1, "a")
    (event,) = await emit(postgres, 1)
    follower = Follower(postgres)
    async with postgres.transaction() as session:
        late = await record_events(session, [NewAssetEvent(1)])
        with anyio.fail_after(30):
            await follower.read()
        assert list(follower.known) == [event]
    for _ in range(3):
        await follower.read()
    assert sorted(follower.known) == [event, *late]


async def test_an_event_that_stays_invisible_for_long_is_not_missed(postgres: Database) -> None:
    """A commit may wait for a synchronous standby for hours. Its events are invisible until then."""
    await add_asset(postgres, 1, "a")
    await add_asset(postgres, 2, "b")
    follower = Follower(postgres)
    await follower.read()
    async with postgres.transaction() as session:
        late = await record_events(session, [NewAssetEvent(1)])
        later = []
        for _ in range(4):
            later += await emit(postgres, 2)
            await follower.read()
        assert sorted(follower.known) == later
    await follower.read()
    await follower.read()
    assert sorted(follower.known) == [*late, *later]
    # Once the transaction has ended, its events are not repeated for long.
    received = follower.received
    for _ in range(4):
        await follower.read()
    assert follower.received - received <= len(follower.known)


@pytest.mark.full
async def test_beside_8_writers_with_random_commit_delays_nothing_is_missed(
    postgres: Database,
) -> None:
    for number in range(1, 9):
        await add_asset(postgres, number, f"a{number}")
    committed: list[int] = []
    random = Random(41)

    async def write(asset_id: int) -> None:
        for _ in range(25):
            delay, is_kept = random.uniform(0, 0.5), random.random() < 0.9
            async with postgres.transaction() as session:
                events = [NewAssetEvent(asset_id) for _ in range(random.randint(1, 5))]
                ids = await record_events(session, events)
                await anyio.sleep(delay)
                if not is_kept:
                    await session.rollback()
            if is_kept:
                committed.extend(ids)

    async def follow(follower: Follower, pause_s: float) -> None:
        while True:
            await follower.read()
            await anyio.sleep(pause_s)

    quick, slow = Follower(postgres, limit=50), Follower(postgres, limit=1_000)
    naive: dict[int, None] = {}
    async with anyio.create_task_group() as readers:
        readers.start_soon(follow, quick, 0.01)
        readers.start_soon(follow, slow, 0.7)
        readers.start_soon(_follow_by_highest_id, postgres, naive)
        async with anyio.create_task_group() as writers:
            for number in range(1, 9):
                writers.start_soon(write, number)
        # Once a client has read two rounds after the last commit, it knows all events.
        for follower in (quick, slow):
            with anyio.fail_after(60):
                while not follower.known.keys() >= set(committed):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
        readers.cancel_scope.cancel()
    assert quick.known.keys() == slow.known.keys() == set(committed)
    # The client that follows by the highest id misses events, so the test can fail.
    assert naive.keys() < set(committed)


async def _follow_by_highest_id(database: Database, known: dict[int, None]) -> None:
    """Follow events by the highest id, which misses events that are committed late."""
    from triggerer.store.events.listing import events_after

    while True:
        async with database.reading() as session:
            found = await events_after(session, max(known, default=0), limit=1_000)
        known.update(dict.fromkeys(event.id for event in found))
        await anyio.sleep(0.01)
