"""Messages that are parked for watchers: how they are written, found and dropped."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import anyio
import pytest
from sqlalchemy import text, update

from tests.store.seeding import FENCE, NOW, add_asset, add_stream
from triggerer.domain.actors import Actor, Role
from triggerer.domain.events import Fence
from triggerer.domain.watchers.parked import (
    Failed,
    ParkedBounds,
    ParkedChange,
    Passed,
    Replayed,
    Returned,
    SetAside,
    Stored,
    StoredBacklog,
    StoredMessage,
)
from triggerer.errors import LeaseLost, ParkedFull, RowRefused, TriggererError
from triggerer.operations.parked import ReplayResult, replay_messages
from triggerer.store.database.script import Announcement, Script, Step, perform
from triggerer.store.database.statement import BoundStatement
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import ParkedBody, Stream, Trigger, Watcher
from triggerer.store.watchers import hosting
from triggerer.store.watchers.hosting import TriggerRow, load_stored_backlogs, load_triggers
from triggerer.store.watchers.listing import list_watchers
from triggerer.store.watchers.parked import (
    USED,
    StoreBodies,
    write_parked,
)
from triggerer.store.watchers.parked_listing import (
    choose_parked,
    count_set_aside,
    count_stored,
    discard_parked,
    find_parked,
    list_parked,
    replay_parked,
)
from triggerer.store.watchers.parked_usage import TOTAL, USAGE, ParkedUsage
from triggerer.store.watchers.parked_writer import ParkedWriter
from triggerer.store.watchers.stored_backlog import park_strays

T = TypeVar("T")

MESSAGE = SetAside("[0]", "topic/0/7", b'{"value": 7}', 11, "ValueError: no", "Traceback …", NOW)


async def _watchers(database: Database) -> None:
    """The watchers 1 and 2 on one stream."""
    await add_stream(database)
    await add_asset(database, 1, "orders")
    async with database.transaction() as session:
        session.add(
            Trigger(id=1, digest="t", classpath="x.Y", kwargs={}, stream_digest=FENCE.stream_digest)
        )
        await session.flush()
        for number in (1, 2):
            session.add(
                Watcher(
                    id=number,
                    asset_id=1,
                    name=f"w{number}",
                    trigger_id=1,
                    path="x.py",
                    updated_at=NOW,
                )
            )


@asynccontextmanager
async def _writing(
    database: Database, bounds: ParkedBounds | None = None, fenced: list[Fence] | None = None
) -> AsyncIterator[ParkedWriter]:
    writer = ParkedWriter(
        database,
        on_fenced=([] if fenced is None else fenced).append,
        bounds=bounds or ParkedBounds(),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        yield writer
        tasks.cancel_scope.cancel()


async def _store(
    writer: ParkedWriter,
    *what: SetAside | Stored | Passed | Failed | Returned | Replayed,
    watcher_id: int = 1,
    fence: Fence = FENCE,
) -> list[Exception | None]:
    answers: list[Exception | None] = []
    answered = anyio.Event()

    def note(error: Exception | None) -> None:
        answers.append(error)
        if len(answers) == len(what):
            answered.set()

    for one in what:
        writer.submit_nowait(ParkedChange(fence, watcher_id, one, note))
    with anyio.fail_after(30):
        await answered.wait()
    return answers


async def _bodies(database: Database) -> int:
    async with database.reading() as session:
        from sqlalchemy import func, select

        return await session.scalar(select(func.count()).select_from(ParkedBody)) or 0


@pytest.mark.rule("a message is redelivered before its parking is durable, and is parked twice")
async def test_the_bytes_are_kept_once_for_all_watchers_and_a_repeat_confirms(
    database: Database,
) -> None:
    await _watchers(database)
    async with _writing(database) as writer:
        assert await _store(writer, MESSAGE, replace(MESSAGE, failures=12)) == [None, None]
        assert await _store(writer, MESSAGE, watcher_id=2) == [None]
    assert await _bodies(database) == 1
    async with database.reading() as session:
        first, second = await list_parked(session)
        shown = await find_parked(session, first.id)
        watchers = await list_watchers(session)
    assert (first.watcher, first.failures, second.watcher) == ("w1", 12, "w2")
    assert (first.lane, first.idempotency_key, first.state) == ("[0]", "topic/0/7", "set_aside")
    assert first.parked_at == NOW
    assert shown is not None
    assert (shown.message, shown.size_bytes) == ('{"value": 7}', 12)
    assert shown.traceback == "Traceback …"
    assert [row.set_aside for row in watchers] == [1, 1]


@pytest.mark.parametrize("data", [bytes(range(256)), b'{"key": "\0*"}'], ids=["binary", "nul"])
async def test_bytes_that_are_no_text_are_kept_as_they_are(database: Database, data: bytes) -> None:
    """Text with a NUL character is shown as Base64 too, because a terminal would drop this character."""
    await _watchers(database)
    async with _writing(database) as writer:
        assert await _store(writer, replace(MESSAGE, data=data)) == [None]
        async with database.transaction() as session:
            (row,) = await list_parked(session)
            shown = await find_parked(session, row.id)
            assert shown is not None
            assert base64.b64decode(shown.message, validate=True) == data
            assert await replay_parked(session, await choose_parked(session)) == 1
        (kept,) = await writer.read_stored(FENCE, 1, 0, 10)
    assert kept.data == data


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_a_former_owner_parks_nothing(database: Database) -> None:
    await _watchers(database)
    fenced: list[Fence] = []
    async with database.transaction() as session:
        await session.execute(update(Stream).values(epoch=FENCE.epoch + 1))
    async with _writing(database, fenced=fenced) as writer:
        (error,) = await _store(writer, MESSAGE)
    assert isinstance(error, LeaseLost)
    assert fenced == [FENCE]
    async with database.reading() as session:
        assert await list_parked(session) == []


@pytest.mark.rule("18: the number and the bytes of parked messages have limits")
@pytest.mark.parametrize(
    "bounds",
    [
        ParkedBounds(max_messages=2),
        ParkedBounds(max_bytes=30),
        ParkedBounds(total_bytes=30),
    ],
)
async def test_at_a_bound_nothing_more_is_parked_and_a_repeat_still_confirms(
    database: Database, bounds: ParkedBounds
) -> None:
    await _watchers(database)
    messages = [replace(MESSAGE, key=f"topic/0/{number}") for number in range(3)]
    async with _writing(database, bounds) as writer:
        first, second, third = await _store(writer, *messages)
        assert (first, second) == (None, None)
        assert isinstance(third, ParkedFull)
        assert await _store(writer, messages[1]) == [None]
        async with database.transaction() as session:
            assert await discard_parked(session, await choose_parked(session, ids=[1])) == 1
        assert await _store(writer, messages[2]) == [None]


@pytest.mark.rule("a deleted watcher's rows stay for ever, or block a slot")
async def test_replayed_messages_reach_the_owner_in_order_and_go_when_they_have_passed(
    database: Database,
) -> None:
    await _watchers(database)
    messages = [replace(MESSAGE, key=f"topic/0/{number}") for number in range(3)]
    async with _writing(database) as writer:
        await _store(writer, *messages)
        async with database.reading() as session:
            ((*_, kept),) = [
                (row, row.stored_lanes)
                for row in await load_triggers(session, [FENCE.stream_digest])
            ]
        assert kept == ()
        async with database.transaction() as session:
            chosen = await choose_parked(session, asset="orders", watcher="w1")
            assert await replay_parked(session, chosen[1:]) == 2
            assert await replay_parked(session, chosen[1:]) == 0, "they are kept already"
        async with database.reading() as session:
            (row,) = await load_triggers(session, [FENCE.stream_digest])
        assert row.stored_lanes == (StoredBacklog(1, "[0]", NOW, 2),)
        assert await writer.read_stored(FENCE, 1, 0, 10) == [
            StoredMessage(chosen[number], "[0]", f"topic/0/{number}", MESSAGE.data, 11)
            for number in (1, 2)
        ]
        await _store(writer, Replayed(chosen[1]), Returned(chosen[2], "again", None))
        assert await writer.read_stored(FENCE, 1, 0, 10) == []
        # The outcomes of messages that were discarded meanwhile find no rows, and raise no error.
        assert await _store(writer, Replayed(999), Returned(998, "gone", None)) == [None, None]
    async with database.reading() as session:
        found = [(row.id, row.failures, row.error) for row in await list_parked(session)]
        shown = await find_parked(session, chosen[2])
    assert found == [(chosen[0], 11, "ValueError: no"), (chosen[2], 12, "again")]
    assert shown is not None
    assert shown.traceback == "Traceback …", "the former traceback stays, as no new one came"
    assert await _bodies(database) == 2


@pytest.mark.rule("a deleted watcher's rows stay for ever, or block a slot")
async def test_a_message_parked_in_two_streams_in_turn_leaves_no_bytes(
    database: Database,
) -> None:
    """A watcher parks a message, moves to another consumer group of the topic, and parks the message again.

    Both times the message has the same key.
    """
    await _watchers(database)
    other = FENCE._replace(stream_digest="other")
    await add_stream(database, other)
    async with _writing(database) as writer:
        assert await _store(writer, MESSAGE) == [None]
        assert await _store(writer, MESSAGE, fence=other) == [None]
    assert await _bodies(database) == 1
    async with database.transaction() as session:
        assert await discard_parked(session, await choose_parked(session)) == 1
    assert await _bodies(database) == 0


async def test_a_stored_message_that_was_parked_in_another_stream_leaves_no_bytes(
    database: Database,
) -> None:
    """In an earlier version, the message's bytes stayed after it was discarded, and took up room forever."""
    await _watchers(database)
    other = FENCE._replace(stream_digest="other")
    async with _writing(database) as writer:
        assert await _store(writer, _kept(0)) == [None]
        await _move(database, 1, other)
        assert await _store(writer, _kept(0), fence=other) == [None]
    assert await _bodies(database) == 1
    async with database.transaction() as session:
        assert await discard_parked(session, await choose_parked(session)) == 1
    assert await _bodies(database) == 0


@pytest.mark.rule("a deleted watcher's rows stay for ever, or block a slot")
async def test_parked_messages_of_a_deleted_watcher_can_be_discarded_and_not_replayed(
    database: Database,
) -> None:
    await _watchers(database)
    async with _writing(database) as writer:
        await _store(writer, MESSAGE)
    async with database.transaction() as session:
        await session.execute(update(Watcher).values(trigger_id=None))
    async with database.reading() as session:
        chosen = await choose_parked(session, asset="x-test://orders", watcher="w1")
    with pytest.raises(
        TriggererError, match=r"declares orders/w1 any longer.*replays another watcher"
    ):
        async with database.transaction() as session:
            await replay_parked(session, chosen)
    async with database.transaction() as session:
        assert await discard_parked(session, chosen) == 1
    assert await _bodies(database) == 0
    async with database.reading() as session:
        assert await choose_parked(session, asset="x-test://orders", watcher="w1") == []
        with pytest.raises(TriggererError, match="the asset 'orders' has no watcher 'w11'"):
            await choose_parked(session, asset="orders", watcher="w11")


async def test_a_replay_of_all_messages_leaves_those_of_deleted_watchers_and_names_the_watchers(
    database: Database,
) -> None:
    actor = Actor("test", Role.ADMIN, "test")
    await _watchers(database)
    async with _writing(database) as writer:
        await _store(writer, MESSAGE)
        await _store(writer, MESSAGE, watcher_id=2)
    async with database.transaction() as session:
        await session.execute(update(Watcher).where(Watcher.id == 1).values(trigger_id=None))
        assert await replay_messages(session, actor) == ReplayResult(1, ("orders/w1",))
    async with database.reading() as session:
        assert [(row.watcher, row.state) for row in await list_parked(session)] == [
            ("w1", "set_aside"),
            ("w2", "kept"),
        ]
    async with database.transaction() as session:
        await session.execute(update(Watcher).values(trigger_id=None))
    with pytest.raises(TriggererError, match="declares orders/w1, orders/w2 any longer"):
        async with database.transaction() as session:
            await replay_messages(session, actor)


@pytest.mark.rule("a stored message is discarded while its watcher works on it, and blocks a slot")
async def test_a_message_discarded_while_its_watcher_fails_with_it_is_not_parked(
    database: Database,
) -> None:
    await _watchers(database)
    failed = replace(MESSAGE, key="queue/0", data=b"0", was_stored=True)
    async with _writing(database) as writer:
        await _store(writer, _kept(0))
        async with database.transaction() as session:
            await discard_parked(session, await choose_parked(session))
        assert await _store(writer, failed) == [None]
        assert await _bodies(database) == 0
        assert await _store(writer, _kept(0), failed) == [None, None]
    async with database.reading() as session:
        (row,) = await list_parked(session)
    assert (row.state, row.failures) == ("set_aside", 11)


async def test_a_choice_with_an_unknown_number_changes_nothing(database: Database) -> None:
    await _watchers(database)
    with pytest.raises(TriggererError, match="parked: 5, 6"):
        async with database.reading() as session:
            await choose_parked(session, ids=[5, 6])


async def test_more_watchers_can_be_listed_than_a_statement_takes_values(
    database: Database,
) -> None:
    await _watchers(database)
    async with _writing(database) as writer:
        await _store(writer, MESSAGE, _kept(0))
    numbers = list(range(1, 33_000))
    async with database.reading() as session:
        assert await count_set_aside(session, numbers) == {1: 1}
        assert await count_stored(session, numbers) == [(1, "[0]", 1, NOW)]


async def test_more_can_be_replayed_and_discarded_at_once_than_a_statement_takes_values(
    database: Database,
) -> None:
    await _watchers(database)
    most = 33_000
    async with _writing(database) as writer:
        await _store(writer, MESSAGE)
    async with database.transaction() as session:
        await session.execute(
            text(
                "INSERT INTO parked_message "
                "(watcher_id, body_id, lane, idempotency_key, state, failures, parked_at) "
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most}) "
                "SELECT watcher_id, body_id, lane, CAST(i AS TEXT), state, failures, parked_at "
                "FROM n CROSS JOIN parked_message"
            )
        )
    async with database.transaction() as session:
        chosen = await choose_parked(session)
        assert await choose_parked(session, ids=chosen) == chosen
        assert await replay_parked(session, chosen) == most + 1
    async with database.transaction() as session:
        assert await discard_parked(session, chosen) == most + 1
    assert await _bodies(database) == 0


def _kept(number: int, lane: str = "[0]") -> Stored:
    return Stored(lane, f"queue/{number}", b"%d" % number, NOW)


@pytest.mark.rule(
    "18: a queue's messages are stored for a watcher that misses them, and come in order"
)
async def test_stored_messages_stay_in_order_and_go_when_they_have_passed(
    database: Database,
) -> None:
    await _watchers(database)
    async with _writing(database) as writer:
        await _store(writer, *map(_kept, range(5)), _kept(9, "[1]"))
        await _store(writer, *map(_kept, range(5)), watcher_id=2)
        assert await _bodies(database) == 6, "the bytes are kept once for the stream"
        await _store(writer, _kept(1), Failed("queue/2", 3))
        found = await writer.read_stored(FENCE, 1, 0, 10, "[0]")
        assert [(one.key, one.failures) for one in found] == [
            (f"queue/{number}", 3 if number == 2 else 0) for number in range(5)
        ]
        assert [one.key for one in await writer.read_stored(FENCE, 1, found[1].id, 2, "[0]")] == [
            "queue/2",
            "queue/3",
        ]
        await _store(writer, Passed(("queue/0", "queue/1", "unknown")))
        assert [one.key for one in await writer.read_stored(FENCE, 1, 0, 1)] == ["queue/2"]
        assert await _bodies(database) == 6
        await _store(writer, Passed(("queue/0",)), watcher_id=2)
        assert await _bodies(database) == 5
    async with database.reading() as session:
        (row,) = await load_triggers(session, [FENCE.stream_digest])
        kept = await load_stored_backlogs(session, [FENCE.stream_digest])
        first, second = await list_watchers(session)
    assert row.stored_lanes == (), "its owner has kept them itself"
    assert kept == {
        1: [StoredBacklog(1, "[0]", NOW, 3), StoredBacklog(1, "[1]", NOW, 1)],
        2: [StoredBacklog(2, "[0]", NOW, 4)],
    }
    assert (first.behind, first.behind_since, first.set_aside) == (4, NOW, 0)
    assert second.behind == 4


async def test_a_message_stored_after_all_have_passed_is_found_by_the_next_read(
    database: Database,
) -> None:
    await _watchers(database)
    async with _writing(database) as writer:
        after = 0
        for number in range(3):
            await _store(writer, _kept(number))
            (found,) = await writer.read_stored(FENCE, 1, after, 10, "[0]")
            assert found.key == f"queue/{number}"
            after = found.id
            await _store(writer, Passed((found.key,)))


async def test_a_parked_message_is_not_stored_again_and_does_not_pass(database: Database) -> None:
    await _watchers(database)
    aside = replace(MESSAGE, key="queue/0")
    async with _writing(database) as writer:
        await _store(writer, _kept(0), aside, _kept(0), Passed(("queue/0",)))
        assert await writer.read_stored(FENCE, 1, 0, 10) == []
    async with database.reading() as session:
        (found,) = await list_parked(session)
    assert (found.state, found.failures) == ("set_aside", 11)


@pytest.mark.parametrize(
    "bounds",
    [ParkedBounds(max_messages=3), ParkedBounds(max_bytes=3), ParkedBounds(total_bytes=3)],
)
async def test_at_a_bound_nothing_more_is_kept_until_there_is_room(
    database: Database, bounds: ParkedBounds
) -> None:
    await _watchers(database)
    async with _writing(database, bounds) as writer:
        answers = await _store(writer, *map(_kept, range(5)))
        assert [type(answer) for answer in answers] == [type(None)] * 3 + [ParkedFull] * 2
        assert isinstance((await _store(writer, _kept(3)))[0], ParkedFull)
        assert await _store(writer, _kept(1)) == [None], "a repeat confirms"
        await _store(writer, Passed(("queue/0",)))
        assert await _store(writer, _kept(3)) == [None]


async def test_a_message_that_is_kept_twice_at_once_is_kept_for_both(database: Database) -> None:
    """While the database is away, a message may be broadcast again before it is stored."""
    await _watchers(database)
    async with _writing(database, ParkedBounds(max_messages=2)) as writer:
        assert await _store(writer, _kept(0), _kept(1), _kept(1), _kept(0)) == [None] * 4
        (answer,) = await _store(writer, _kept(2))
        assert isinstance(answer, ParkedFull)


async def test_stored_messages_are_read_in_pages_of_a_few_megabytes(database: Database) -> None:
    await _watchers(database)
    large = 3 * 1024 * 1024
    sizes = [1, large, large, 2 * large, 1, large]
    messages = [replace(_kept(at), data=b"x" * size) for at, size in enumerate(sizes)]
    async with _writing(database) as writer:
        await _store(writer, *messages)
        pages: list[list[int]] = []
        after = 0
        while rows := await writer.read_stored(FENCE, 1, after, 100):
            pages.append([len(row.data) for row in rows])
            after = rows[-1].id
    assert [size for page in pages for size in page] == sizes
    assert pages == [[1, large, large], [2 * large], [1, large]]


@pytest.mark.rule("18: the number and the bytes of parked messages have limits")
@pytest.mark.parametrize(
    "bounds",
    [ParkedBounds(max_messages=3), ParkedBounds(max_bytes=3), ParkedBounds(total_bytes=3)],
)
async def test_newly_parked_messages_leave_less_room_for_stored_ones(
    database: Database, bounds: ParkedBounds
) -> None:
    await _watchers(database)
    async with _writing(database, bounds) as writer:
        assert await _store(writer, _kept(0)) == [None]
        poison = [replace(MESSAGE, key=f"poison/{number}", data=b"x") for number in range(2)]
        assert await _store(writer, *poison) == [None, None]
        assert isinstance((await _store(writer, _kept(1)))[0], ParkedFull)
        async with database.reading() as session:
            assert len(await list_parked(session)) == 3


async def test_a_group_reads_the_usage_once_and_not_for_each_message(
    database: Database,
) -> None:
    """Reading the usage takes time in proportion to the stored messages."""
    await _watchers(database)
    steps: list[Step | Announcement] = []
    usage = ParkedUsage()
    for first in (0, 3):
        changes = [
            ParkedChange(FENCE, 1, what, lambda _: None)
            for number in range(first, first + 3)
            for what in (_kept(number), replace(MESSAGE, key=f"poison/{number}"))
        ]
        async with database.transaction() as session:
            await perform(
                session, _recording_steps(write_parked(changes, ParkedBounds(), usage), steps)
            )
    asked = [step.statement for step in steps if isinstance(step, BoundStatement)]
    assert [asked.count(one) for one in (TOTAL, USAGE, USED)] == [1, 1, 0]
    kept_together = [len(step.bodies) for step in steps if isinstance(step, StoreBodies)]
    assert kept_together == [3, 1, 1, 1] * 2


def _recording_steps(script: Script[T], steps: list[Step | Announcement]) -> Script[T]:
    """Perform the script, and add its steps to `steps`."""
    try:
        step = next(script)
        while True:
            steps.append(step)
            step = script.send((yield step))
    except StopIteration as ended:
        return cast("T", ended.value)


async def test_it_is_known_until_when_something_of_a_stream_is_being_written(
    database: Database,
) -> None:
    await _watchers(database)
    async with _writing(database) as writer:
        assert not writer.is_writing(FENCE.stream_digest)
        writer.submit_nowait(ParkedChange(FENCE, 1, MESSAGE, lambda error: None))
        assert writer.is_writing(FENCE.stream_digest)
        assert not writer.is_writing("another")
        with anyio.fail_after(30):
            await writer.wait_until_written([FENCE.stream_digest])
        async with database.reading() as session:
            assert len(await list_parked(session)) == 1


async def test_a_trigger_that_many_watchers_share_is_put_together_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version built a trigger's row again for each of its watchers.

    With 40,000 watchers, this blocked the event loop for 78 s.
    """
    await _watchers(database)
    made: list[TriggerRow] = []

    def make(*values: Any) -> TriggerRow:
        made.append(TriggerRow(*values))
        return made[-1]

    monkeypatch.setattr(hosting, "TriggerRow", make)
    async with database.reading() as session:
        assert await load_triggers(session, [FENCE.stream_digest]) == made
    assert [row.watcher_names for row in made] == [("orders/w1", "orders/w2")]


async def test_stored_messages_of_a_watcher_that_reads_another_stream_are_parked(
    database: Database,
) -> None:
    await _watchers(database)
    async with _writing(database) as writer:
        await _store(writer, _kept(0))
        await _store(writer, _kept(0), watcher_id=2)
    async with database.transaction() as session:
        await session.execute(update(Watcher).where(Watcher.id == 1).values(trigger_id=None))
        await park_strays(session)
    async with database.reading() as session:
        found = [(one.watcher, one.state) for one in await list_parked(session)]
    assert found == [("w1", "set_aside"), ("w2", "kept")]


async def test_a_replayed_message_is_delivered_although_its_watcher_reads_another_stream_by_now(
    database: Database,
) -> None:
    """A changed DAG file may move the watcher before the stream's owner sees the replay."""
    await _watchers(database)
    async with _writing(database) as writer:
        await _store(writer, MESSAGE)
        await _store(writer, MESSAGE, watcher_id=2)
    other = FENCE._replace(stream_digest="other")
    await add_stream(database, other)
    async with database.transaction() as session:
        await replay_parked(session, await choose_parked(session))
        await session.execute(update(Trigger).values(stream_digest=other.stream_digest))
        await session.execute(update(Watcher).where(Watcher.id == 2).values(trigger_id=None))
        await park_strays(session)
    async with database.reading() as session:
        (row,) = await load_triggers(session, [other.stream_digest])
        found = [(one.watcher, one.state, one.error) for one in await list_parked(session)]
    assert row.stored_lanes == (StoredBacklog(1, "[0]", NOW, 1),)
    assert found == [("w1", "kept", "ValueError: no"), ("w2", "set_aside", "ValueError: no")]


async def _move(database: Database, watcher_id: int, to: Fence) -> None:
    """Give the watcher another trigger on another stream, as a changed DAG file does."""
    await add_stream(database, to)
    async with database.transaction() as session:
        session.add(
            Trigger(id=9, digest="t9", classpath="x.Y", kwargs={}, stream_digest=to.stream_digest)
        )
        await session.flush()
        await session.execute(update(Watcher).where(Watcher.id == watcher_id).values(trigger_id=9))


@pytest.mark.parametrize("how", ["deleted", "moved"])
async def test_a_message_stored_before_the_owner_sees_that_a_watcher_left_is_parked(
    database: Database, how: str
) -> None:
    """An earlier version put the message into the watcher's backlog (`kept`).

    So a moved watcher received the old stream's message, and the message of a deleted watcher was lost.
    """
    await _watchers(database)
    other = FENCE._replace(stream_digest="other")
    if how == "moved":
        await _move(database, 1, other)
    else:
        async with database.transaction() as session:
            await session.execute(update(Watcher).where(Watcher.id == 1).values(trigger_id=None))
    async with _writing(database) as writer:
        assert await _store(writer, _kept(0), _kept(1)) == [None, None]
        assert await _store(writer, _kept(0), watcher_id=2) == [None]
    async with database.reading() as session:
        kept = await load_stored_backlogs(session, [FENCE.stream_digest, other.stream_digest])
        found = [(one.watcher, one.state, one.error) for one in await list_parked(session)]
    assert list(kept) == [2]
    assert found == [
        *2 * [("w1", "set_aside", "its watcher was deleted, or reads another stream now")],
        ("w2", "kept", None),
    ]


async def test_a_text_that_no_database_takes_is_refused_alone(database: Database) -> None:
    """In an earlier version, half a surrogate pair ended the task that stores messages, and with it the service."""
    await _watchers(database)
    async with _writing(database) as writer:
        good, bad = await _store(writer, _kept(0), replace(_kept(1), lane="half \ud800"))
    assert good is None
    assert isinstance(bad, RowRefused)


async def test_messages_stored_in_a_watchers_new_stream_are_not_delivered_in_the_former_one(
    database: Database,
) -> None:
    """The old stream's owner may not know yet that the watcher has moved, and may have a lane of the same name."""
    await _watchers(database)
    other = FENCE._replace(stream_digest="other")
    await _move(database, 1, other)
    async with _writing(database) as writer:
        await _store(writer, _kept(0), fence=other)
        assert await writer.read_stored(FENCE, 1, 0, 10) == []
        (found,) = await writer.read_stored(other, 1, 0, 10, "[0]")
    assert found.key == _kept(0).key
