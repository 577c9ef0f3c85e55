"""How many stored messages are read before their lanes have their turns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import orjson
import pytest

from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import encode_lane
from triggerer.domain.watchers.parked import ParkedStore, StoredMessage
from triggerer.streams.catchup.backlogs.backlogs import Backlog, Backlogs
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.catchup.reading import queue_reader as kept_reader
from triggerer.streams.catchup.reading.queue_reader import QueueReader
from triggerer.streams.delivery.group_state import GroupState
from triggerer.testing import InMemoryBroker, InMemoryQueueProducer

WATCHER = WatcherRef(1, 1)
LIMIT = 1_000


class Store:
    """The stored messages of a watcher. `readings` has the lane of each read; None: all lanes."""

    def __init__(self) -> None:
        self.rows: list[StoredMessage] = []
        self.readings: list[str | None] = []

    def add(self, lane: str, value: str) -> None:
        number = len(self.rows) + 1
        data = orjson.dumps(["in memory", value])
        self.rows.append(StoredMessage(number, str(encode_lane(lane)), f"key {number}", data))

    async def read_stored(
        self, fence: Fence, watcher_id: int, after: int, limit: int, lane: str | None = None
    ) -> list[StoredMessage]:
        self.readings.append(lane)
        return [row for row in self.rows if row.id > after and lane in (None, row.lane)][:limit]


class State:
    """The part of a group that the reader uses."""

    def __init__(self) -> None:
        self.backlogs = Backlogs(None)
        self.producer = InMemoryQueueProducer(InMemoryBroker())


class Reading:
    """One watcher that is behind in some lanes, which are read in turns."""

    def __init__(self, store: Store, *lanes: str) -> None:
        state = State()
        self.backlogs: list[Backlog] = []
        for lane in lanes:
            backlog = Backlog(
                WATCHER,
                lane,
                str(encode_lane(lane)),
                datetime.now(UTC),
                Fence("stream", "me", 1),
                [None, 0],
                [None, 0],
                is_stored=True,
                stored_lane=StoredLane(),
            )
            state.backlogs.enter(backlog)
            self.backlogs.append(backlog)
        self.reader = QueueReader(WATCHER, cast(GroupState, state), cast(ParkedStore, store))
        self.most_bytes = 0
        self.given: dict[Any, list[Any]] = {lane: [] for lane in lanes}

    async def turn(self, backlog: Backlog) -> None:
        assert backlog.stored_lane is not None
        page = await self.reader.read(backlog)
        pages = [one.stored_lane.page for one in self.backlogs if one.stored_lane is not None]
        held = sum(len(row.data) for rows in pages for row in rows)
        self.most_bytes = max(self.most_bytes, held)
        for message in page:
            assert message.id is not None
            self.given[backlog.lane].append(message.event)
            backlog.stored_lane.mark_given(message.id)

    async def turns(self, most: int) -> None:
        for _ in range(most):
            for backlog in self.backlogs:
                assert backlog.stored_lane is not None
                if backlog.stored_lane.has_unread:
                    await self.turn(backlog)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reader, "_PAGE_BYTES", LIMIT)


async def test_reading_all_lanes_together_is_bounded_in_bytes() -> None:
    store = Store()
    lanes = [f"lane {number}" for number in range(50)]
    for lane in lanes:
        store.add(lane, "x" * 100)
    reading = Reading(store, *lanes)
    await reading.turn(reading.backlogs[0])
    size = len(store.rows[0].data)
    # The reader stops after the message that reaches the limit. So memory may exceed the limit by less than one
    # message.
    assert LIMIT <= reading.most_bytes < LIMIT + size
    await reading.turns(60)
    assert reading.most_bytes < LIMIT + size
    assert reading.given == {lane: ["x" * 100] for lane in lanes}


async def test_below_the_limit_one_reading_serves_all_lanes() -> None:
    store = Store()
    lanes = [f"lane {number}" for number in range(20)]
    for lane in lanes:
        store.add(lane, "x")
    reading = Reading(store, *lanes)
    await reading.turns(1)
    assert reading.given == {lane: ["x"] for lane in lanes}
    assert store.readings == [None]


async def test_a_lane_that_found_no_room_is_read_alone_and_from_its_first_message() -> None:
    """The first reading is for both lanes. After the large message and "a", the reading has no room for "b"."""
    store = Store()
    store.add("late", "a")
    store.add("large", "x" * LIMIT)
    store.add("late", "b")
    store.add("late", "c")
    reading = Reading(store, "large", "late")
    await reading.turns(5)
    assert reading.given == {"large": ["x" * LIMIT], "late": ["a", "b", "c"]}
    assert '"late"' in store.readings


async def test_messages_stored_meanwhile_are_read_in_order() -> None:
    store = Store()
    for number in range(6):
        store.add(f"lane {number % 3}", f"{number} {'x' * 400}")
    reading = Reading(store, "lane 0", "lane 1", "lane 2")
    await reading.turns(1)
    for number in range(6, 12):
        store.add(f"lane {number % 3}", f"{number} {'x' * 400}")
    for backlog in reading.backlogs:
        assert backlog.stored_lane is not None
        backlog.stored_lane.record_more()
    await reading.turns(10)
    for at, backlog in enumerate(reading.backlogs):
        numbers = [int(event.split()[0]) for event in reading.given[backlog.lane]]
        assert numbers == [at, at + 3, at + 6, at + 9]
