"""When very many events become ready in one instant, they are advanced in order and other tasks get turns."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import anyio
import anyio.lowlevel

from triggerer.abc import AdvanceItem, BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.streams.delivery.lanes import Lanes
from triggerer.streams.delivery.ledger import Ledger, LedgerMember
from triggerer.testing import StreamHarness

_EVENTS = 5_000


class Numbers(SharedStreamProducer):
    batches: ClassVar[list[list[int]]]
    turns_at: ClassVar[list[int]]
    turns: ClassVar[int]

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        for number in range(_EVENTS):
            yield number, number
        await anyio.sleep_forever()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        Numbers.batches.append([item.broker_payload for item in batch])
        Numbers.turns_at.append(Numbers.turns)


class FiresAtZero(BaseEventTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "FiresAtZero", {}

    def shared_stream_key(self) -> str:
        return "numbers"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Numbers:
        return Numbers()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            if number == 0:
                yield TriggerEvent(number)


async def _count_turns() -> None:
    while True:
        Numbers.turns += 1
        await anyio.lowlevel.checkpoint()


async def test_events_behind_a_stuck_head_are_advanced_in_order_with_turns_for_others_between() -> (
    None
):
    Numbers.batches, Numbers.turns_at, Numbers.turns = [], [], 0
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(FiresAtZero())
        await streams.quiesce()
        assert not Numbers.batches
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_count_turns)
            await streams.persist()
            with anyio.fail_after(30):
                while sum(map(len, Numbers.batches)) < _EVENTS:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert one.error is None
    assert [number for batch in Numbers.batches for number in batch] == list(range(_EVENTS))
    assert max(map(len, Numbers.batches)) <= 512
    assert len(set(Numbers.turns_at)) == len(Numbers.turns_at)


def test_the_ledger_hands_on_as_many_as_it_is_asked_for_and_says_whether_more_is_left() -> None:
    lanes = Lanes()
    ledger = Ledger(lanes)
    member = LedgerMember()
    ledger.join(member, was_absent=False)
    for number in range(5):
        ledger.broadcast_in_lane(number, number, None, 0.0)
    member.done = 5
    assert ledger.release_passed(2)
    assert [item.broker_payload for item in _take(lanes)] == [0, 1]
    assert ledger.release_passed(2)
    assert not ledger.release_passed(2)
    assert [item.broker_payload for item in _take(lanes)] == [2, 3, 4]


def test_a_lane_of_which_a_part_was_taken_is_queued_again() -> None:
    lanes = Lanes()
    ledger = Ledger(lanes)
    member = LedgerMember()
    ledger.join(member, was_absent=False)
    for number in range(3):
        ledger.broadcast_in_lane(number, number, None, 0.0)
    member.done = 3
    ledger.release_passed()
    assert [item.broker_payload for item in _take(lanes, 2)] == [0, 1]
    assert lanes.has_ready
    assert [item.broker_payload for item in _take(lanes, 2)] == [2]
    assert not lanes.has_ready


def test_of_several_lanes_no_more_are_taken_together_than_hold_so_many_events() -> None:
    lanes = Lanes()
    ledger = Ledger(lanes)
    member = LedgerMember()
    ledger.join(member, was_absent=False)
    for lane in range(4):
        for number in range(3):
            ledger.broadcast_in_lane((lane, number), (lane, number), lane, 0.0)
    member.done = 12
    ledger.release_passed()
    taken_lanes, batches = lanes.take_together(3, 2)
    found = [[item.broker_payload for item in batch] for batch in batches]
    assert found == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    for one in taken_lanes:
        lanes.finish(one)
    # Lanes that have waited longer come first. Each batch has the rest of its lane.
    _, batches = lanes.take_together(100, 100)
    found = [[item.broker_payload for item in batch] for batch in batches]
    assert found == [
        [(2, 0), (2, 1), (2, 2)],
        [(3, 0), (3, 1), (3, 2)],
        [(0, 2)],
        [(1, 2)],
    ]
    assert not lanes.has_ready


def _take(lanes: Lanes, limit: int = 100) -> list[AdvanceItem]:
    lane, batch = lanes.take(limit)
    lanes.finish(lane)
    return batch
