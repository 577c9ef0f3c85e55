"""The ends of a log's lanes: one look-up serves all tasks that ask at nearly the same time."""

from collections.abc import Hashable, Mapping
from datetime import datetime

import anyio
import pytest

from triggerer.domain.watchers.lane_positions import Position
from triggerer.streams.catchup.reading.lane_ends import LaneEnds
from triggerer.streams.clock import SystemClock


class _Log:
    """A producer that answers once the test allows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.may_answer = anyio.Event()

    async def find_positions(self, _start: datetime | None) -> Mapping[Hashable, Position]:
        self.asked += 1
        asked = self.asked
        await self.may_answer.wait()
        if self.fails:
            raise ConnectionError("the broker is away")
        return {"lane": ("log", asked)}


async def test_those_who_ask_together_share_a_look_and_those_who_ask_meanwhile_the_next() -> None:
    log, ends, clock = _Log(), LaneEnds(), SystemClock()
    found: list[Position] = []

    async def ask() -> None:
        answer = await ends.find(log, clock, after=clock.monotonic())  # type: ignore[arg-type]
        found.append(answer["lane"])

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            for _ in range(100):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
        log.may_answer.set()
    # The first look-up began before the other tasks asked, so they need another one.
    assert found == [("log", 1)] * 100 + [("log", 2)] * 100


async def test_an_answer_is_kept_for_who_needs_no_later_one() -> None:
    log, ends, clock = _Log(), LaneEnds(), SystemClock()
    log.may_answer.set()
    before = clock.monotonic() - 1
    for _ in range(3):
        await ends.find(log, clock, after=before)  # type: ignore[arg-type]
    assert log.asked == 1
    await ends.find(log, clock, after=clock.monotonic())  # type: ignore[arg-type]
    assert log.asked == 2


async def test_an_error_is_not_kept() -> None:
    log, ends, clock = _Log(), LaneEnds(), SystemClock()
    log.may_answer.set()
    before = clock.monotonic() - 1
    log.fails = True
    with pytest.raises(ConnectionError):
        await ends.find(log, clock, after=before)  # type: ignore[arg-type]
    log.fails = False
    found = await ends.find(log, clock, after=before)  # type: ignore[arg-type]
    assert found == {"lane": ("log", 2)}
