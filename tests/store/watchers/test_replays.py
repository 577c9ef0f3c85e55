"""Requests to set watchers back: how they are asked, found, ended and dropped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest
from sqlalchemy import select, update

from tests.store.seeding import FENCE, NOW, add_asset, add_stream, until
from triggerer.domain.events import Fence
from triggerer.domain.watchers.lane_positions import PositionChange, Reemission, ReplayEnd
from triggerer.errors import LeaseLost, RowRefused, TriggererError
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.schema.models import Trigger, Watcher, WatcherReplay
from triggerer.store.watchers.hosting import load_triggers
from triggerer.store.watchers.position_writer import PositionWriter
from triggerer.store.watchers.positions import drop_positions_without_stream
from triggerer.store.watchers.replays import ask_for_replay


@pytest.fixture
async def watched(database: Database) -> Database:
    """The watcher `orders/w` on a stream that we own; `orders/alone` and `orders/bookmarked` have no shared stream."""
    await add_stream(database)
    await add_stream(database, Fence("trigger-x", "me", 1))
    await add_stream(database, Fence("watcher-x", "me", 1))
    await add_asset(database, 1, "orders")
    async with database.transaction() as session:
        for number, digest in ((1, FENCE.stream_digest), (2, "trigger-x"), (3, "watcher-x")):
            session.add(
                Trigger(
                    id=number, digest=f"t{number}", classpath="x.Y", kwargs={}, stream_digest=digest
                )
            )
        await session.flush()
        for number, name in ((1, "w"), (2, "alone"), (3, "bookmarked")):
            session.add(
                Watcher(
                    id=number, asset_id=1, name=name, trigger_id=number, path="x", updated_at=NOW
                )
            )
    return database


async def ask(database: Database, start: datetime | None = None, *, reemit: bool = False) -> int:
    async with database.transaction() as session:
        return (await ask_for_replay(session, "orders", "w", start=start, reemit=reemit)).id


async def test_a_request_wakes_the_owner_and_is_read_with_the_trigger(watched: Database) -> None:
    with watched.wakeups.subscribe(Signal.STREAMS_CHANGED) as woken:
        first = await ask(watched, NOW)
        second = await ask(watched, reemit=True)
        announced = await woken.wait(timedelta(seconds=10))
    assert announced == {Signal.STREAMS_CHANGED: {FENCE.stream_digest}}
    async with watched.reading() as session:
        (row,) = await load_triggers(session, [FENCE.stream_digest])
    assert [(one.id, one.watcher_id, one.start, one.reemit) for one in row.replays] == [
        (first, 1, NOW, False),
        (second, 1, None, True),
    ]


@pytest.mark.parametrize(
    ("asset", "name", "start", "said"),
    [
        ("orders", "other", None, "has no watcher 'other'"),
        ("nope", "w", None, "has no watcher 'w'"),
        ("orders", "alone", None, "no shared stream"),
        ("orders", "bookmarked", None, "no shared stream"),
        ("orders", "w", datetime(9999, 1, 1, tzinfo=UTC), "still to come"),
    ],
)
async def test_an_impossible_request_is_refused_at_once(
    watched: Database, asset: str, name: str, start: datetime | None, said: str
) -> None:
    with pytest.raises(TriggererError, match=said):
        async with watched.transaction() as session:
            await ask_for_replay(session, asset, name, start=start, reemit=False)
    async with watched.reading() as session:
        assert (await session.scalars(select(WatcherReplay))).all() == []


async def test_the_owner_stores_the_reemission_and_ends_the_request(watched: Database) -> None:
    number = await ask(watched, reemit=True)
    answers: list[Exception | None] = []
    reemit = Reemission(number, ["topic", 3], ["topic", 9])
    async with anyio.create_task_group() as tasks:
        writer = PositionWriter(watched, on_fenced=lambda _: None)
        tasks.start_soon(writer.run)
        change = PositionChange(
            FENCE, 1, "0", ["topic", 3], NOW, 9, 0, answers.append, reemit, ["topic", 3]
        )
        writer.submit_nowait(change)
        # A previous owner of the stream ends no replay.
        lost = Fence(FENCE.stream_digest, "another", 2)
        writer.end_replay_nowait(ReplayEnd(lost, 1, number, answers.append))
        await until(lambda: len(answers) == 2)
        assert sorted(map(type, answers), key=str) == sorted([type(None), LeaseLost], key=str)
        async with watched.reading() as session:
            (row,) = await load_triggers(session, [FENCE.stream_digest])
        (position,) = row.positions
        assert (position.reemit, position.rewound_to) == (reemit, ["topic", 3])
        assert len(row.replays) == 1
        writer.end_replay_nowait(ReplayEnd(FENCE, 1, number, answers.append))
        await until(lambda: len(answers) == 3)
        tasks.cancel_scope.cancel()
    assert answers[2] is None
    async with watched.reading() as session:
        (row,) = await load_triggers(session, [FENCE.stream_digest])
    assert row.replays == ()
    # Keys of events contain the replay's id, so no later replay gets the same id.
    assert await ask(watched) > number


async def test_a_position_that_is_not_json_is_refused_alone(watched: Database) -> None:
    """A plugin's `get_position` may return bytes. In an earlier version, this ended the task that stores all
    positions."""
    answers: list[Exception | None] = []
    async with anyio.create_task_group() as tasks:
        writer = PositionWriter(watched, on_fenced=lambda _: None)
        for lane, position in enumerate([["topic", 3], [b"topic", 3], ["topic", 4]]):
            writer.submit_nowait(
                PositionChange(FENCE, 1, str(lane), position, NOW, 9, 0, answers.append)
            )
        tasks.start_soon(writer.run)
        await until(lambda: len(answers) == 3)
        tasks.cancel_scope.cancel()
    assert [type(answer) for answer in answers if answer is not None] == [RowRefused]
    async with watched.reading() as session:
        (row,) = await load_triggers(session, [FENCE.stream_digest])
    assert [one.position for one in row.positions] == [["topic", 3], ["topic", 4]]


async def test_requests_for_a_watcher_go_with_it(watched: Database) -> None:
    await ask(watched)
    async with watched.transaction() as session:
        await drop_positions_without_stream(session)
        assert len((await session.scalars(select(WatcherReplay))).all()) == 1
        await session.execute(update(Watcher).where(Watcher.id == 1).values(trigger_id=None))
        await drop_positions_without_stream(session)
        assert (await session.scalars(select(WatcherReplay))).all() == []


async def test_a_former_stream_ends_no_replay_of_a_watcher_that_has_moved_to_another(
    watched: Database,
) -> None:
    """The former stream's position was left out, because the watcher had moved. The request is for the new stream."""
    number = await ask(watched)
    other = Fence("other", "another", 1)
    await add_stream(watched, other)
    async with watched.transaction() as session:
        await session.execute(update(Trigger).where(Trigger.id == 1).values(stream_digest="other"))
    answers: list[Exception | None] = []
    shown = []
    async with anyio.create_task_group() as tasks:
        writer = PositionWriter(watched, on_fenced=lambda _: None)
        tasks.start_soon(writer.run)
        for fence in (FENCE, other):
            writer.submit_nowait(
                PositionChange(fence, 1, "0", ["topic", 3], NOW, 9, 0, answers.append)
            )
            writer.end_replay_nowait(ReplayEnd(fence, 1, number, answers.append))
            await until(lambda: len(answers) == 2)
            answers.clear()
            async with watched.reading() as session:
                (row,) = await load_triggers(session, ["other"])
            shown.append((len(row.positions), [one.id for one in row.replays]))
        tasks.cancel_scope.cancel()
    assert shown == [(0, [number]), (1, [])]


async def test_a_former_stream_ends_no_place_in_the_one_that_its_watcher_has_moved_to(
    watched: Database,
) -> None:
    """The two streams are consumer groups of one topic, so their lanes have the same names.

    In an earlier version, the old stream deleted the position that the watcher had in its new stream.
    """
    other = Fence("other", "another", 1)
    await add_stream(watched, other)
    async with watched.transaction() as session:
        await session.execute(update(Trigger).where(Trigger.id == 1).values(stream_digest="other"))
    answers: list[Exception | None] = []
    async with anyio.create_task_group() as tasks:
        writer = PositionWriter(watched, on_fenced=lambda _: None)
        tasks.start_soon(writer.run)
        for fence, position in ((other, ["topic", 3]), (FENCE, None)):
            writer.submit_nowait(
                PositionChange(fence, 1, "0", position, NOW, None, 0, answers.append)
            )
        await until(lambda: len(answers) == 2)
        tasks.cancel_scope.cancel()
    assert answers == [None, None]
    async with watched.reading() as session:
        (row,) = await load_triggers(session, ["other"])
    assert [one.position for one in row.positions] == [["topic", 3]]
