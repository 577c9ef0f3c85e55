"""The cost of a scrape of the metrics under full load: `python -m tests.benchmarks.scrape`.

The runtime alone processes messages as fast as it can, alternately without scrapes and with a scrape each second. The
difference in the processor time is the cost of the scrapes. At the end the benchmark prints the time of one scrape for
up to 20,000 lanes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from triggerer.abc import AdvanceItem, BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.live_state import LaneLive, StreamLive
from triggerer.observability.metrics.exposition import GATHERING
from triggerer.service.metrics import MOST_LANES, StreamMetrics
from triggerer.streams import Manager, RuntimeContext, TriggerSpec
from triggerer.streams.supervision.live_state import read_streams

LANES = 64
WATCHERS = 10
INTERVAL_S = 1.0


class Sink:
    """A sink that stores nothing and confirms each event at once."""

    is_full = False

    async def wait_for_room(self) -> None:
        raise AssertionError("this sink is never full")

    def submit_nowait(self, event: Any, *_: Any) -> None:
        event.complete(None)


class Producer(SharedStreamProducer):
    """Yields the numbers up to `total`, and sets `done` once all are advanced."""

    total = 0
    done = anyio.Event()

    def __init__(self) -> None:
        self.advanced = 0

    async def open_stream(self) -> AsyncIterator[tuple[int, int]]:
        for number in range(self.total):
            yield number, number
        await anyio.sleep_forever()

    def get_advance_lane(self, broker_payload: int) -> Hashable:
        return broker_payload % LANES

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        self.advanced += len(batch)
        if self.advanced >= self.total:
            self.done.set()


class Watching(BaseEventTrigger):
    """A trigger that derives an event from one message in ten."""

    def __init__(self, number: int) -> None:
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmark", {"number": self.number}

    def shared_stream_key(self) -> Hashable:
        return "benchmark"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Producer()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            if number % WATCHERS == self.number:
                yield TriggerEvent(number)


async def turn(messages: int, *, scrapes: bool) -> tuple[float, float, int]:
    """Return the processor time and the wall time of one turn, and the number of scrapes."""
    Producer.total, Producer.done = messages, anyio.Event()
    fence = Fence("digest", "me", 1)
    specs = [
        TriggerSpec(
            f"w{number}",
            partial(Watching, number),
            {"number": number},
            EventSource((WatcherRef(number + 1, 1),), fence),
            stream_id="digest",
        )
        for number in range(WATCHERS)
    ]
    stop = threading.Event()
    count = 0

    def scrape() -> None:
        nonlocal count
        while not stop.wait(INTERVAL_S):
            GATHERING.text()
            count += 1

    async with Manager(RuntimeContext(Sink())) as manager:
        metrics = StreamMetrics(lambda: read_streams(manager, most_lanes=MOST_LANES))
        remove = GATHERING.add(metrics.read)
        manager.add(specs)
        thread = threading.Thread(target=scrape)
        computing, began = time.process_time(), time.perf_counter()
        if scrapes:
            thread.start()
        await Producer.done.wait()
        spent = time.process_time() - computing, time.perf_counter() - began
        stop.set()
        if scrapes:
            thread.join()
        remove()
    return *spent, count


def time_of_scrapes(streams: int, lanes: int) -> float:
    """Return the median time of a scrape, in ms. `lanes` is the number of lanes in each stream."""
    lane = LaneLive('"l"', 5, 5, 1.0, None, is_full=False)
    live = StreamLive(
        "", "", "kafka", 1, 10**6, 10**6, 0, 0, 0, 5, 5, 9, 1.0, 0, 0, 1, [], lanes, [lane] * lanes
    )
    many = [replace(live, stream=f"kafka t{n}", stream_id=str(n)) for n in range(streams)]
    remove = GATHERING.add(StreamMetrics(lambda: many).read)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        GATHERING.text()
        times.append(time.perf_counter() - began)
    remove()
    return statistics.median(times) * 1000


def main() -> int:
    """Measure the cost of scrapes, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    anyio.run(lambda: turn(20_000, scrapes=True))
    costs = []
    for number in range(arguments.rounds):
        order = (False, True) if number % 2 else (True, False)
        found = {
            scrapes: anyio.run(partial(turn, arguments.messages, scrapes=scrapes))
            for scrapes in order
        }
        (with_, wall, scrapes), (without, wall_without, _) = found[True], found[False]
        costs.append(with_ / without - 1)
        print(
            f"round {number + 1}: {arguments.messages / without:,.0f} messages per processor second without,"
            f" {arguments.messages / with_:,.0f} with {scrapes} scrapes in {wall:.1f} s"
            f" ({wall_without:.1f} s without): {costs[-1]:+.2%}"
        )
    print(
        f"a scrape each second costs {statistics.median(costs):+.2%}, at 15 s a fifteenth of that"
    )
    for streams, lanes in ((1, 20), (50, 20), (1_000, 20)):
        print(f"{streams} streams: a scrape takes {time_of_scrapes(streams, lanes):.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
