"""On each database, `db clean` deletes a watcher's event only if the watcher cannot get the event's message again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from tests.store.cleaning import DAY, age, cleaned, count
from tests.store.scheduling import now_of
from tests.store.seeding import FENCE, NOW, Event, add_asset, add_stream, record, recording
from triggerer.domain.events import EventSource, WatcherRef
from triggerer.errors import TriggererError
from triggerer.operations.cleaning import events as cleaning
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import (
    AssetEvent,
    ParkedBody,
    ParkedMessage,
    Stream,
    Trigger,
    Watcher,
    WatcherPosition,
)
from triggerer.store.schema.models.base import Base
from triggerer.store.watchers.replays import ask_for_replay


@pytest.fixture
async def settled(database: Database) -> Database:
    """Two watchers of one stream, which have run without trouble for a day. Each watcher has two old events."""
    now = await now_of(database)
    await add_stream(database)
    for number, name in ((1, "orders"), (2, "refunds")):
        await add_asset(database, number, name)
    async with database.transaction() as session:
        await session.execute(update(Stream).values(expires_at=now + DAY))
        for number in (1, 2):
            session.add(
                Trigger(
                    id=number, digest=f"t{number}", classpath="x.Y", kwargs={},
                    stream_digest=FENCE.stream_digest,
                )
            )  # fmt: skip
        await session.flush()
        for number in (1, 2):
            session.add(
                Watcher(
                    id=number, asset_id=number, name="w", trigger_id=number, path="x",
                    state="running", updated_at=now - DAY,
                )
            )  # fmt: skip
    await redeliver(database, 1)
    await age(database)
    return database


async def redeliver(database: Database, *numbers: int) -> None:
    """Deliver these messages to both watchers, again or for the first time, and then a new message."""
    made = []
    for number in (*numbers, await count(database, AssetEvent) + 100):
        for watcher in (1, 2):
            source = EventSource((WatcherRef(watcher, watcher),), None)
            made.append(Event({"n": number}, f"m{number}", source=source))
    async with recording(database) as recorder:
        await record(recorder, *made)


async def test_the_events_of_a_watcher_in_good_order_go(settled: Database) -> None:
    found = await cleaned(settled)
    # The newest event of each asset stays.
    assert (found.asset_events, found.kept_watchers) == (2, [])
    async with settled.reading() as session:
        noted = await session.scalars(select(Watcher.cleaned_before))
        assert set(noted) == {found.before.events}


def _values(table: type[Base], **columns: Any) -> Callable[[Any], Any]:
    return lambda session: session.execute(update(table).values(**columns))


@pytest.mark.parametrize(
    ("disorder", "reason"),
    [
        (_values(Stream, expires_at=NOW), "it has a stream that nobody reads"),
        (_values(Stream, owner=None, expires_at=None), "it has a stream that nobody reads"),
        (
            lambda session: session.execute(
                update(Watcher).where(Watcher.id == 2).values(state="failing")
            ),
            "refunds/w is failing",
        ),
        (_values(Watcher, state="catching_up"), "it is catching_up"),
        (
            _values(Watcher, updated_at=func.current_timestamp()),
            "it has been running only since",
        ),
    ],
)
async def test_the_events_of_a_stream_that_may_be_read_again_stay(
    settled: Database, disorder: Callable[[Any], Any], reason: str
) -> None:
    async with settled.transaction() as session:
        await disorder(session)
    found = await cleaned(settled)
    assert (found.asset_events, found.kept_events) == (0, {"watcher": 2, "newest": 2})
    assert [one.asset_name for one in found.kept_watchers] == ["orders", "refunds"]
    assert found.kept_watchers[0].reason.startswith(reason)
    before = await count(settled, AssetEvent)
    await redeliver(settled, 1)
    assert await count(settled, AssetEvent) == before + 2


async def test_a_watcher_that_is_behind_or_reads_again_keeps_its_events(settled: Database) -> None:
    async with settled.transaction() as session:
        session.add(
            WatcherPosition(
                watcher_id=1,
                lane="[0]",
                stream_digest=FENCE.stream_digest,
                position=["t", 1],
                since=NOW,
            )
        )
        await ask_for_replay(session, "refunds", "w", start=None, reemit=False)
    found = await cleaned(settled)
    assert found.kept_events == {"watcher": 2, "newest": 2}
    reasons = [one.reason for one in found.kept_watchers]
    assert reasons == ["it is behind in its log", "a replay was requested"]


async def test_a_replay_that_is_asked_for_meanwhile_finds_its_events(
    settled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    highest_event = cleaning.highest_event

    async def and_ask(session: Any) -> int:
        async with settled.transaction() as writing:
            await ask_for_replay(writing, "orders", "w", start=None, reemit=False)
        return await highest_event(session)

    monkeypatch.setattr(cleaning, "highest_event", and_ask)
    found = await cleaned(settled)
    assert (found.asset_events, found.kept_events) == (1, {"watcher": 1, "newest": 2})
    assert [one.reason for one in found.kept_watchers] == ["it is about to read its log again"]


async def test_no_replay_makes_events_again_whose_keys_were_deleted(settled: Database) -> None:
    found = await cleaned(settled)

    async def ask(start: datetime | None, *, reemit: bool = False) -> None:
        async with settled.transaction() as session:
            await ask_for_replay(session, "orders", "w", start=start, reemit=reemit)

    before = found.before.events
    assert before is not None
    for start in (None, before - timedelta(seconds=1)):
        with pytest.raises(TriggererError, match="the keys that show which messages are repeats"):
            await ask(start)
    await ask(before)
    await ask(None, reemit=True)


async def test_a_watcher_without_old_events_may_still_have_the_history(settled: Database) -> None:
    async with settled.transaction() as session:
        await session.execute(
            update(AssetEvent)
            .where(AssetEvent.watcher_id == 2)
            .values(timestamp=func.current_timestamp())
        )
    assert (await cleaned(settled)).asset_events == 1
    async with settled.transaction() as session:
        await ask_for_replay(session, "refunds", "w", start=None, reemit=False)


async def test_the_event_of_a_message_that_is_set_aside_stays(settled: Database) -> None:
    async with settled.transaction() as session:
        body = ParkedBody(
            stream_digest=FENCE.stream_digest, idempotency_key="m1", data=b"1", size_bytes=1
        )
        session.add(body)
        await session.flush()
        session.add(
            ParkedMessage(
                watcher_id=1, body_id=body.id, lane="[0]", idempotency_key="m1", state="set_aside",
                failures=1, parked_at=NOW,
            )
        )  # fmt: skip
    found = await cleaned(settled)
    assert (found.asset_events, found.kept_events) == (1, {"parked": 1, "newest": 2})


async def test_the_events_of_a_removed_watcher_go(settled: Database) -> None:
    async with settled.transaction() as session:
        await session.execute(update(Watcher).where(Watcher.id == 2).values(trigger_id=None))
    assert (await cleaned(settled)).asset_events == 2


async def test_the_last_hour_of_a_watcher_always_stays(settled: Database) -> None:
    now = await now_of(settled)
    async with settled.transaction() as session:
        await session.execute(
            update(AssetEvent)
            .where(AssetEvent.watcher_id == 1)
            .values(timestamp=now - timedelta(minutes=59))
        )
    found = await cleaned(settled, days=0)
    assert (found.asset_events, found.kept_events) == (1, {"watcher": 1, "newest": 2})
