"""The hints for one open page, with virtual time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import anyio
import orjson
import pytest

from triggerer.api.context import ApiContext
from triggerer.api.routes import changes
from triggerer.api.routes.changes import hints
from triggerer.store.database.wakeups.signals import Signal, Wakeups
from triggerer.testing.simulation.kernel.loop import VirtualLoop

Run = Callable[[Coroutine[Any, Any, None]], None]
Message = tuple[float, str, Any]
"""When a message came, the name of its event, and its data."""

ACCESS = cast("Any", None)
TOLERANCE_S = 0.1
"""Virtual time passes while callbacks run."""


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a coroutine on an event loop whose time passes at once."""
    loop = VirtualLoop(random.Random(1), 0.0, lambda: None)
    yield loop.run_until_complete
    loop.close()


class Token:
    """The client's token. It is revoked at an instant."""

    def __init__(self) -> None:
        self.revoked_at = float("inf")

    async def is_valid(self, api: ApiContext, access: object) -> bool:
        return anyio.current_time() < self.revoked_at


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Token:
    token = Token()
    monkeypatch.setattr(changes, "is_access_valid", token.is_valid)
    return token


@asynccontextmanager
async def changing(times: Sequence[float]) -> AsyncIterator[ApiContext]:
    """Yield an API where the DAG `d0` has a run at the first of these times, `d1` at the second, and so on."""
    wakeups = Wakeups()
    database = SimpleNamespace(wakeups=wakeups)
    api = ApiContext(cast("Any", None), cast("Any", database), cast("Any", None))

    async def publish() -> None:
        for number, time in enumerate(times):
            await anyio.sleep_until(time)
            wakeups.publish(Signal.RUNS_QUEUED, f"d{number}")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        yield api
        tasks.cancel_scope.cancel()


async def received(api: ApiContext, *, close_at: float = float("inf")) -> list[Message]:
    """Receive messages until the answer ends. The API begins to stop at the instant `close_at`."""
    messages: list[Message] = []

    async def close() -> None:
        await anyio.sleep_until(close_at)
        api.closing.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        async for message in hints(api, ACCESS):
            data = orjson.loads(cast("str", message.data))
            messages.append((anyio.current_time(), str(message.event), data))
        tasks.cancel_scope.cancel()
    return messages


@pytest.mark.parametrize(
    "times",
    [[], [1], [10], [14.5], [number * 0.1 for number in range(1, 400)]],
    ids=["nothing", "early", "later", "before the look", "all the time"],
)
def test_a_revoked_token_ends_the_answer_within_fifteen_seconds(
    run: Run, token: Token, times: Sequence[float]
) -> None:
    async def follow() -> None:
        async with changing(times) as api:
            token.revoked_at = 0.5
            await received(api)
            assert anyio.current_time() < 15 + TOLERANCE_S

    run(follow())


@pytest.mark.usefixtures("token")
def test_changes_come_at_most_once_a_second_and_none_is_lost(run: Run) -> None:
    async def follow() -> None:
        async with changing([number * 0.1 for number in range(1, 400)]) as api:
            messages = await received(api, close_at=45)
        at = [time for time, event, _ in messages if event == "changes"]
        assert min(later - time for time, later in pairwise(at)) >= 1
        named = [dag for _, event, data in messages if event == "changes" for dag in data["runs"]]
        assert sorted(named) == sorted(f"d{number}" for number in range(399))

    run(follow())


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("times", [[], [14.5, 16], [number * 0.1 for number in range(1, 700)]])
def test_alive_comes_at_the_start_and_every_fifteen_seconds(
    run: Run, times: Sequence[float]
) -> None:
    async def follow() -> None:
        async with changing(times) as api:
            messages = await received(api, close_at=50)
        at = [time for time, event, _ in messages if event == "alive"]
        assert at == pytest.approx([0, 15, 30, 45], abs=TOLERANCE_S)

    run(follow())
