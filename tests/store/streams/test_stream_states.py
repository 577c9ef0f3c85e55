"""The states of streams, on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from sqlalchemy import delete, select, update

from tests.store.seeding import FENCE, until
from triggerer.domain.events import Fence
from triggerer.domain.watchers.stream_states import StateChange
from triggerer.errors import LeaseLost, PluginError
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Stream, StreamState, Trigger
from triggerer.store.streams.state_writer import StateWriter
from triggerer.store.streams.states import drop_states_without_watchers
from triggerer.streams.supervision.stream_state import StoredState, load_state


@asynccontextmanager
async def writing(database: Database, fenced: list[Fence]) -> AsyncIterator[StateWriter]:
    writer = StateWriter(database, on_fenced=fenced.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        yield writer
        tasks.cancel_scope.cancel()


async def opened(writer: StateWriter, fence: Fence = FENCE) -> StoredState:
    state = await load_state(writer, fence, "key")
    assert isinstance(state, StoredState)
    return state


async def test_the_last_saved_state_goes_to_the_next_owner(watched: Database) -> None:
    async with writing(watched, []) as writer:
        state = await opened(writer)
        assert state.value is None
        for number in range(3):
            await state.save({"n": number, "list": [None, 1.5, "é"]})
        assert state.value == {"n": 2, "list": [None, 1.5, "é"]}
        assert (await opened(writer)).value == {"n": 2, "list": [None, 1.5, "é"]}


@pytest.mark.parametrize("value", [None, [], "text", 7, {"a": {"b": []}}])
async def test_any_json_comes_back_as_it_was(watched: Database, value: Any) -> None:
    async with writing(watched, []) as writer:
        await (await opened(writer)).save(value)
        assert (await opened(writer)).value == value


async def test_saves_of_one_stream_are_stored_in_their_order(watched: Database) -> None:
    done: list[Exception | None] = []
    async with writing(watched, []) as writer:
        for number in range(20):
            writer.submit_nowait(StateChange(FENCE, "key", str(number).encode(), done.append))
        await until(lambda: len(done) == 20)
        assert done == [None] * 20
        assert await writer.load(FENCE, "key") == 19


async def test_an_earlier_value_is_saved_again_after_a_cancelled_save_became_durable(
    watched: Database,
) -> None:
    async with writing(watched, []) as writer:
        state = await opened(writer)
        await state.save("a")
        with anyio.move_on_after(0) as scope:
            await state.save("b")
        assert scope.cancelled_caught
        await until(lambda: not state.is_saving)
        assert await writer.load(FENCE, "key") == state.value == "b"
        await state.save("a")
        assert await writer.load(FENCE, "key") == state.value == "a"


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_a_former_owner_saves_nothing_and_gets_an_error(watched: Database) -> None:
    fenced: list[Fence] = []
    async with writing(watched, fenced) as writer:
        state = await opened(writer)
        await state.save(1)
        async with watched.transaction() as session:
            await session.execute(update(Stream).values(owner="another", epoch=FENCE.epoch + 1))
        with pytest.raises(LeaseLost):
            await state.save(2)
        assert fenced == [FENCE]
        assert state.value == 1
        successor = await opened(writer, Fence(FENCE.stream_digest, "another", FENCE.epoch + 1))
        assert successor.value == 1
        await successor.save(3)
        assert successor.value == 3


async def test_the_state_ends_with_the_last_watcher_and_is_not_saved_after_it(
    watched: Database,
) -> None:
    async with writing(watched, []) as writer:
        state = await opened(writer)
        await state.save(1)
        async with watched.transaction() as session:
            await drop_states_without_watchers(session)
        assert (await opened(writer)).value == 1
        async with watched.transaction() as session:
            await session.execute(delete(Trigger))
            await drop_states_without_watchers(session)
        # The stream's owner does not know yet that the state was dropped.
        await state.save(2)
        async with watched.reading() as session:
            assert list(await session.scalars(select(StreamState))) == []


async def test_a_state_that_is_no_json_or_too_large_is_refused(watched: Database) -> None:
    async with writing(watched, []) as writer:
        state = await opened(writer)
        with pytest.raises(PluginError, match="the state of a stream is not JSON"):
            await state.save(object())
        with pytest.raises(PluginError, match="1048576 are allowed"):
            await state.save("x" * 1_048_576)
        assert state.value is None


async def test_without_a_store_a_producer_with_a_state_cannot_be_opened() -> None:
    with pytest.raises(PluginError, match="no store for it"):
        await load_state(None, FENCE, "key")
