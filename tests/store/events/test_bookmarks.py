"""A watcher's bookmark is stored in one transaction with the events before it, on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from sqlalchemy import select, update

from tests.store.seeding import FENCE, NOW, events_in, until
from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.text.json_text import load_json
from triggerer.domain.watchers.bookmarks import BookmarkChange
from triggerer.errors import LeaseLost, RowRefused, StoreError, StoreUnavailable
from triggerer.store.database.script import Script
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Stream, Trigger, Watcher, WatcherBookmark
from triggerer.store.watchers import bookmarks as bookmarks_module
from triggerer.store.watchers.bookmark_writer import BookmarkWriter
from triggerer.streams import Manager, RuntimeContext, TriggerSpec

WATCHER = WatcherRef(1, 1)


@pytest.fixture
async def declared(watched: Database) -> Database:
    async with watched.transaction() as session:
        session.add(Watcher(id=1, asset_id=1, name="w", trigger_id=1, path="x.py", updated_at=NOW))
    return watched


@asynccontextmanager
async def writing(
    database: Database, fenced: list[Fence] | None = None
) -> AsyncIterator[BookmarkWriter]:
    found: list[Fence] = [] if fenced is None else fenced
    writer = BookmarkWriter(database, on_fenced=found.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        yield writer
        tasks.cancel_scope.cancel()


def submit(
    writer: BookmarkWriter,
    numbers: Sequence[int],
    *,
    after: str | None,
    change: str,
    fence: Fence = FENCE,
    payload: Any = None,
) -> list[Exception | None]:
    """Submit events with these numbers, and the last number as the bookmark. The returned list receives the outcome."""
    told: list[Exception | None] = []
    events = [TriggerEvent({"n": payload or n}, key=f"key/{n}") for n in numbers]
    value = str(numbers[-1]).encode()
    writer.submit_nowait(
        BookmarkChange(fence, WATCHER, "x.Y", after, change, value, events, told.append)
    )
    return told


async def stored(database: Database) -> tuple[list[Any], Any]:
    """The payloads of the events, and the bookmark."""
    async with database.reading() as session:
        values = list(await session.scalars(select(WatcherBookmark.value)))
    numbers = [event.extra["n"] for event in await events_in(database)]
    return numbers, load_json(values[0]) if values else None


async def outcome(told: list[Exception | None]) -> Exception | None:
    await until(lambda: bool(told))
    return told[0]


async def test_events_and_bookmark_are_durable_together_and_in_order(declared: Database) -> None:
    async with writing(declared) as writer:
        told = [
            submit(writer, [1, 2], after=None, change="a"),
            submit(writer, [3], after="a", change="b"),
        ]
        assert [await outcome(one) for one in told] == [None, None]
        assert await stored(declared) == ([1, 2, 3], 3)
        last = await writer.load(FENCE, 1, "x.Y")
        assert (last.change, last.value) == ("b", 3)


class Hostile:
    """A payload whose own code raises an error while the store encodes it."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("hostile")


async def test_a_change_that_cannot_be_encoded_is_not_awaited_by_the_next_load(
    declared: Database,
) -> None:
    async with writing(declared) as writer:
        events = [TriggerEvent(Hostile())]
        change = BookmarkChange(FENCE, WATCHER, "x.Y", None, "a", b"1", events, lambda _: None)
        with pytest.raises(RuntimeError, match="hostile"):
            writer.submit_nowait(change)
        assert not writer.is_writing(FENCE.stream_digest)
        with anyio.fail_after(20):
            assert (await writer.load(FENCE, 1, "x.Y")).change is None


async def test_a_crash_between_events_and_bookmark_leaves_neither(
    declared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = fails_between(monkeypatch, StoreUnavailable("the process died here"))
    async with writing(declared) as writer:
        told = submit(writer, [1, 2], after=None, change="a")
        await until(lambda: failed[0] > 0)
    assert told == []
    assert await stored(declared) == ([], None)


async def test_a_commit_without_an_answer_is_repeated_and_stores_nothing_twice(
    declared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failed = declared.perform, [0]

    async def commit_and_lose_the_answer(script: Script[Any]) -> Any:
        result = await write(script)
        if not failed[0]:
            failed[0] += 1
            raise StoreUnavailable("the answer was lost")
        return result

    monkeypatch.setattr(declared, "perform", commit_and_lose_the_answer)
    async with writing(declared) as writer:
        assert await outcome(submit(writer, [1, 2], after=None, change="a")) is None
    assert failed == [1]
    assert await stored(declared) == ([1, 2], 2)


async def test_a_change_that_does_not_follow_the_stored_one_is_refused_with_its_events(
    declared: Database,
) -> None:
    async with writing(declared) as writer:
        assert await outcome(submit(writer, [1], after=None, change="a")) is None
        for after in (None, "z"):
            late = await outcome(submit(writer, [2], after=after, change="b"))
            assert isinstance(late, LeaseLost)
    assert await stored(declared) == ([1], 1)


async def test_a_key_that_was_used_before_is_an_error_and_no_repeat(declared: Database) -> None:
    async with writing(declared) as writer:
        assert await outcome(submit(writer, [1], after=None, change="a")) is None
        again = await outcome(submit(writer, [1, 2], after="a", change="b"))
        assert isinstance(again, StoreError)
        assert "key/1" in str(again)
    assert await stored(declared) == ([1], 1)


async def test_two_events_with_one_key_refuse_their_bookmark(declared: Database) -> None:
    async with writing(declared) as writer:
        twice = await outcome(submit(writer, [1, 2, 1], after=None, change="a"))
        assert isinstance(twice, RowRefused)
        assert "key/1" in str(twice)
    assert await stored(declared) == ([], None)


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_a_former_owner_stores_neither_events_nor_bookmark(declared: Database) -> None:
    fenced: list[Fence] = []
    async with writing(declared, fenced) as writer:
        async with declared.transaction() as session:
            await session.execute(update(Stream).values(owner="another", epoch=FENCE.epoch + 1))
        assert isinstance(await outcome(submit(writer, [1], after=None, change="a")), LeaseLost)
    assert fenced == [FENCE]
    assert await stored(declared) == ([], None)


async def test_a_removed_watcher_gets_nothing_and_keeps_its_bookmark_until_it_is_back(
    declared: Database,
) -> None:
    async with writing(declared) as writer:
        assert await outcome(submit(writer, [1], after=None, change="a")) is None
        async with declared.transaction() as session:
            await session.execute(update(Watcher).values(trigger_id=None))
        assert isinstance(await outcome(submit(writer, [2], after="a", change="b")), LeaseLost)
        async with declared.transaction() as session:
            session.add(
                Trigger(
                    id=2,
                    digest="u",
                    classpath="x.Y",
                    kwargs={"n": 2},
                    stream_digest=FENCE.stream_digest,
                )
            )
            await session.flush()
            await session.execute(update(Watcher).values(trigger_id=2))
        assert (await writer.load(FENCE, 1, "x.Y")).value == 1
        assert await outcome(submit(writer, [2], after="a", change="c")) is None
    assert await stored(declared) == ([1, 2], 2)


async def test_a_trigger_of_another_class_starts_without_the_bookmark(declared: Database) -> None:
    async with writing(declared) as writer:
        await outcome(submit(writer, [1], after=None, change="a"))
        other = await writer.load(FENCE, 1, "x.Z")
        assert (other.change, other.value) == ("a", None)


async def test_an_event_that_cannot_be_stored_refuses_its_bookmark_alone(
    declared: Database,
) -> None:
    async with writing(declared) as writer:
        refused = submit(writer, [1], after=None, change="a", payload="\0")
        assert isinstance(await outcome(refused), RowRefused)
        assert await outcome(submit(writer, [2], after=None, change="b")) is None
    assert await stored(declared) == ([2], 2)


class Counting(BaseEventTrigger):
    """Yields the numbers after its bookmark up to ten, two at a time."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "x.Y", {}

    async def run_from(self, bookmark: Any) -> AsyncIterator[tuple[list[TriggerEvent], Any]]:
        for number in range(bookmark or 0, 10, 2):
            events = [TriggerEvent({"n": n}, key=f"key/{n}") for n in (number, number + 1)]
            yield events, number + 2
        await anyio.sleep_forever()


async def test_a_trigger_that_is_stopped_at_any_moment_continues_without_loss_or_repeat(
    declared: Database,
) -> None:
    for patience in (0.0, 0.001, 0.002, 0.004, 0.008, 0.02):
        async with writing(declared) as writer, Manager(context(writer)) as manager:
            manager.add([spec()])
            await anyio.sleep(patience)
    async with writing(declared) as writer, Manager(context(writer)) as manager:
        manager.add([spec()])
        with anyio.fail_after(10):
            while len(await events_in(declared)) < 10:  # noqa: ASYNC110  (the database announces nothing)
                await anyio.sleep(0.01)
        await writer.wait_until_written([FENCE.stream_digest])
    assert await stored(declared) == ([*range(10)], 10)


def context(writer: BookmarkWriter) -> RuntimeContext:
    return RuntimeContext(sink=None, bookmarks=writer)  # type: ignore[arg-type]


def spec() -> TriggerSpec:
    return TriggerSpec("orders/w", Counting, {}, EventSource((WATCHER,), FENCE))


def fails_between(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Let each transaction fail between its events and its bookmark; return a list with the number of failures."""
    failed, save = [0], bookmarks_module.SAVE

    def fail(**values: Any) -> Any:
        failed[0] += 1
        raise error

    monkeypatch.setattr(bookmarks_module, "SAVE", fail)
    assert save is not bookmarks_module.SAVE
    return failed
