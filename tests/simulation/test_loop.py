"""The virtual event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

import pytest

from triggerer.testing.simulation.kernel.loop import Deadlock, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(random.Random(1), 100.0, lambda: None)
    yield made
    made.close()


def test_a_year_passes_at_once(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.sleep(365 * 86400))
    assert loop.time() == pytest.approx(100 + 365 * 86400, abs=1)


def test_ready_callbacks_run_in_the_order_of_becoming_ready(loop: VirtualLoop) -> None:
    seen: list[int] = []
    for number in range(50):
        loop.call_soon(seen.append, number)
    loop.run_until_complete(asyncio.sleep(0))
    assert seen == list(range(50))


def order_of_equal_timers(seed: int) -> list[int]:
    loop = VirtualLoop(random.Random(seed), 0.0, lambda: None)
    seen: list[int] = []
    for number in range(10):
        loop.call_at(5.0, seen.append, number)
    loop.run_until_complete(asyncio.sleep(6.0))
    loop.close()
    return seen


def test_the_seed_draws_the_order_of_timers_with_equal_deadlines() -> None:
    orders = [order_of_equal_timers(seed) for seed in range(5)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert order_of_equal_timers(3) == orders[3]


def test_a_loop_without_callbacks_and_timers_raises_deadlock(loop: VirtualLoop) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    task = loop.create_task(wait_for_ever())
    with pytest.raises(Deadlock):
        loop.run_until_complete(task)
    unwind(loop, task)


class Stop(BaseException):
    pass


def test_a_step_that_raises_stops_the_loop_before_the_callback() -> None:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise Stop

    loop = VirtualLoop(random.Random(1), 0.0, count)
    seen: list[int] = []
    for number in range(5):
        loop.call_soon(seen.append, number)
    with pytest.raises(Stop):
        loop.run_forever()
    assert seen == [0, 1]
    loop.close()


def unwind(loop: VirtualLoop, task: asyncio.Task[Any]) -> None:
    async def wait() -> None:
        task.cancel()
        await asyncio.wait([task])

    waiting: Coroutine[Any, Any, None] = wait()
    loop.run_until_complete(waiting)


def test_a_loop_that_was_stopped_finishes_its_turn_and_can_go_on(loop: VirtualLoop) -> None:
    seen: list[str] = []
    loop.call_soon(loop.stop)
    loop.call_soon(seen.append, "in the same turn")
    loop.call_later(1.0, seen.append, "later")
    loop.run_forever()
    assert seen == ["in the same turn"]
    assert not loop.is_running()
    loop.run_until_complete(asyncio.sleep(2.0))
    assert seen == ["in the same turn", "later"]


async def count(closed: list[int], number: int) -> AsyncGenerator[int, None]:
    try:
        while True:
            yield number
    finally:
        await asyncio.sleep(0)
        closed.append(number)


def test_open_generators_are_closed_in_the_order_of_their_start(
    loop: VirtualLoop,
) -> None:
    closed: list[int] = []
    generators = [count(closed, number) for number in range(20)]

    async def begin() -> None:
        for generator in generators:
            await anext(generator)

    loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert closed == list(range(20))


def test_a_generator_that_is_dropped_is_closed_by_the_loop(loop: VirtualLoop) -> None:
    closed: list[int] = []

    async def begin() -> None:
        await anext(count(closed, 1))
        await asyncio.sleep(1.0)

    loop.run_until_complete(begin())
    assert closed == [1]
