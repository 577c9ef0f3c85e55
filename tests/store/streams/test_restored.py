"""A database restored from a backup: the marks by which a stream notices it, and requests to set watchers back."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select, update

from tests.actors import TESTER
from tests.store.seeding import FENCE, NOW, add_asset, add_stream
from tests.store.watchers.test_replays import watched
from triggerer.domain.events import Fence
from triggerer.errors import MoveRefused, TriggererError
from triggerer.operations.restoring.marking import Restored, mark_restored
from triggerer.store.audit.listing import list_audit
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Restoration, Stream, Trigger, Watcher, WatcherReplay
from triggerer.store.streams.leases import register_instance
from triggerer.store.streams.marks import renew_marks
from triggerer.store.watchers.restored import set_back_new_watchers

__all__ = ["watched"]

HOUR = timedelta(hours=1)


async def restored(database: Database, at: datetime = NOW, margin: timedelta = HOUR) -> Restored:
    return await mark_restored(database, TESTER, at, margin=margin)


async def requests(database: Database) -> list[tuple[int, datetime | None]]:
    async with database.reading() as session:
        rows = await session.scalars(select(WatcherReplay).order_by(WatcherReplay.id))
        return [(row.watcher_id, row.start) for row in rows if row.is_restore and not row.reemit]


async def test_only_the_marks_of_streams_in_order_are_renewed_and_never_go_back(
    database: Database,
) -> None:
    other = Fence("other", "me", 1)
    for fence in (FENCE, other):
        await add_stream(database, fence)
    async with database.transaction() as session:
        before = await renew_marks(session, [FENCE, other], [])
        first = await renew_marks(session, [FENCE, other], [FENCE])
    assert {fence: mark.at for fence, mark in before.items()} == {FENCE: None, other: None}
    assert first[FENCE].at is not None
    assert first[other] == before[other]
    # The mark of FENCE is not renewed, because FENCE is missing from the first list, as after a lost lease.
    async with database.transaction() as session:
        assert await renew_marks(session, [other], [FENCE]) == {other: before[other]}
        assert await renew_marks(session, [FENCE], []) == {FENCE: first[FENCE]}
        future = first[FENCE].at + HOUR
        await session.execute(
            update(Stream).where(Stream.digest == "stream").values(marked_at=future)
        )
        assert (await renew_marks(session, [FENCE], [FENCE]))[FENCE].at == future


async def test_watchers_of_shared_streams_are_set_back_and_a_repeat_changes_nothing(
    watched: Database,
) -> None:
    async with watched.reading() as session:
        before = set(await session.scalars(select(Stream.incarnation)))
    done = await restored(watched)
    shown = [(one.name, one.start, one.has_bookmark) for one in done.watchers]
    assert shown == [("alone", None, False), ("bookmarked", None, True), ("w", NOW - HOUR, False)]
    assert await requests(watched) == [(1, NOW - HOUR)]
    assert await restored(watched) == done
    assert await requests(watched) == [(1, NOW - HOUR)]
    # An earlier time sets it back further.
    await restored(watched, margin=2 * HOUR)
    assert await requests(watched) == [(1, NOW - HOUR), (1, NOW - 2 * HOUR)]
    async with watched.reading() as session:
        after = set(await session.scalars(select(Stream.incarnation)))
        rows = await list_audit(session, limit=10)
    assert not before & after
    assert [(row.action, row.after) for row in rows][-1] == (
        "database.restored",
        {"backup_time": NOW.isoformat(), "start": (NOW - HOUR).isoformat()},
    )


async def test_nothing_is_read_again_whose_keys_were_deleted(watched: Database) -> None:
    cleaned = NOW - timedelta(minutes=10)
    async with watched.transaction() as session:
        await session.execute(update(Watcher).values(cleaned_before=cleaned))
    await restored(watched)
    assert await requests(watched) == [(1, cleaned)]


async def test_a_backup_of_the_future_is_refused_and_nothing_is_changed(watched: Database) -> None:
    with pytest.raises(TriggererError, match="still to come"):
        await restored(watched, NOW.replace(year=9999))
    assert await requests(watched) == []


@pytest.mark.parametrize("margin", [timedelta(days=3000 * 365), timedelta.max])
async def test_a_margin_that_begins_before_the_calendar_is_refused_and_nothing_is_changed(
    watched: Database, margin: timedelta
) -> None:
    with pytest.raises(TriggererError, match="reaches back before the year 1"):
        await restored(watched, margin=margin)
    assert await requests(watched) == []


async def test_a_database_that_a_service_uses_is_refused(watched: Database) -> None:
    if watched.dialect == "sqlite":
        pytest.skip(
            "on SQLite the lock of the file refuses the command before it asks for instances"
        )
    async with watched.transaction() as session:
        await register_instance(session, "elsewhere:1:abc", kind="triggerer")
    with pytest.raises(MoveRefused, match="elsewhere"):
        await restored(watched)
    assert await requests(watched) == []


async def test_watchers_that_the_backup_lacks_are_set_back_until_all_files_were_read(
    watched: Database,
) -> None:
    async def declare(number: int, stream: str, *, is_reading: bool) -> bool:
        async with watched.transaction() as session:
            trigger = Trigger(
                id=number, digest=f"n{number}", classpath="x.Y", kwargs={}, stream_digest=stream
            )
            session.add(trigger)
            await session.flush()
            watcher = Watcher(
                id=number, asset_id=2, name=f"n{number}", trigger_id=trigger.id, path="x"
            )
            watcher.updated_at = NOW
            session.add(watcher)
            await session.flush()
            return await set_back_new_watchers(session, [watcher], is_reading=is_reading, now=NOW)

    await add_asset(watched, 2, "later")
    assert not await declare(11, FENCE.stream_digest, is_reading=True)
    assert await requests(watched) == [], "nothing was restored"
    await restored(watched)
    assert await declare(12, FENCE.stream_digest, is_reading=True)
    assert await declare(13, "trigger-x", is_reading=True)
    assert not await declare(14, FENCE.stream_digest, is_reading=False)
    assert not await declare(15, FENCE.stream_digest, is_reading=True)
    set_back = {watcher for watcher, start in await requests(watched) if start == NOW - HOUR}
    assert set_back == {1, 11, 12, 14}
    async with watched.reading() as session:
        assert (await session.scalars(select(Restoration.files_read_at))).all() == [NOW]
