"""Compares the Service Bus producer with the vendor's bare client, which receives and completes messages.

Run with `python -m tests.benchmarks.brokers.servicebus`.

The readers below take turns on queues of one test server:

- `bare` receives up to 100 messages at once and completes them one after the other, as the SDK's samples do.
- `bare together` completes the messages of a batch at the same time.
- `producer` is our producer without the runtime.
- `runtime` is our producer under the real runtime, without a database. One watcher makes an event of each message.
- `runtime alone` is `runtime` with a separate advance for each lane.

Then single messages are sent, to measure the time until receipt and, in a whole service on SQLite, until the run is
queued. Last, streams without messages are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final

import anyio
import psutil
from azure.servicebus.aio import ServiceBusClient

from producers.servicebus import ServiceBusSharedStreamProducer
from producers.servicebus.entity import EntityPath
from producers.servicebus.settings import ServiceBusSettings
from tests.benchmarks.brokers.bare_producer import drain
from tests.benchmarks.brokers.run_latency import latency_to_runs
from tests.services.brokers.servicebus import ServiceBusServer, open_servicebus
from triggerer.abc import AdvanceItem, SharedStreamProducer
from triggerer.testing import StreamHarness
from watchers.servicebus import ServiceBusEventTrigger

_BATCH: Final = 100


async def bare(server: ServiceBusServer, queue: str, count: int) -> None:
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        while count:
            messages = await receiver.receive_messages(_BATCH, max_wait_time=5)
            for message in messages:
                await receiver.complete_message(message)
            count -= len(messages)


async def bare_together(server: ServiceBusServer, queue: str, count: int) -> None:
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        while count:
            messages = await receiver.receive_messages(_BATCH, max_wait_time=5)
            async with anyio.create_task_group() as tasks:
                for message in messages:
                    tasks.start_soon(receiver.complete_message, message)
            count -= len(messages)


class _Alone(ServiceBusSharedStreamProducer):
    """The producer with a separate advance for each lane."""

    advance_lanes = SharedStreamProducer.advance_lanes

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await ServiceBusSharedStreamProducer.advance_lanes(self, [batch])


def _producer(
    server: ServiceBusServer,
    queue: str,
    cls: type[ServiceBusSharedStreamProducer] = ServiceBusSharedStreamProducer,
) -> ServiceBusSharedStreamProducer:
    settings = ServiceBusSettings.from_mapping(
        "bench", {"connection_string": server.connection_string}
    )
    return cls(EntityPath(queue), settings=settings)


async def producer(server: ServiceBusServer, queue: str, count: int) -> None:
    """Read the messages with our producer, without the runtime."""
    await drain(_producer(server, queue), count)


def _trigger(
    server: ServiceBusServer,
    queue: str,
    match: dict[str, Any] | None = None,
    cls: type[ServiceBusSharedStreamProducer] = ServiceBusSharedStreamProducer,
) -> ServiceBusEventTrigger:
    producer_class = cls

    class Trigger(ServiceBusEventTrigger):
        def shared_stream_key(self) -> Hashable:
            return ("bench", queue)

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
            return _producer(server, queue, producer_class)

    return Trigger(queue, match=match)


async def runtime_alone(server: ServiceBusServer, queue: str, count: int) -> None:
    await runtime(server, queue, count, _Alone)


async def runtime(
    server: ServiceBusServer,
    queue: str,
    count: int,
    cls: type[ServiceBusSharedStreamProducer] = ServiceBusSharedStreamProducer,
) -> None:
    async with StreamHarness() as streams:
        view = await streams.add(_trigger(server, queue, cls=cls))
        while len(view.events) < count or any(one.outstanding for one in streams.groups.values()):
            if view.error is not None:
                raise view.error
            await anyio.sleep(0.002)


READERS: Final[dict[str, Callable[[ServiceBusServer, str, int], Awaitable[None]]]] = {
    "bare": bare,
    "bare together": bare_together,
    "producer": producer,
    "runtime alone": runtime_alone,
    "runtime": runtime,
}


async def measure_throughput(server: ServiceBusServer, count: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in READERS}
    used: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(rounds):
        for name, read in READERS.items():
            queue = server.create(f"b-{uuid.uuid4().hex[:8]}")
            await asyncio.to_thread(server.send, queue, ['{"n": 1}'] * count)
            began, processor = time.perf_counter(), time.process_time()
            await read(server, queue, count)
            used[name].append((time.process_time() - processor) / count * 1e6)
            rates[name].append(count / (time.perf_counter() - began))
    base = statistics.median(rates["bare"])
    for name, found in rates.items():
        middle = statistics.median(found)
        print(
            f"{name:14} {middle:8.0f} messages/s  {middle / base:5.0%} of bare"
            f"  {statistics.median(used[name]):6.0f} µs of CPU each  {[round(r) for r in found]}"
        )


async def measure_latency(server: ServiceBusServer, count: int) -> None:
    """Show the time from the sending of a message to its receipt: first by the bare client, then by the runtime."""
    queue = server.create(f"b-{uuid.uuid4().hex[:8]}")
    found = []
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        messages = aiter(receiver)
        for _ in range(count):
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asyncio.to_thread, server.send, queue, ["1"])
                message = await anext(messages)
                found.append(time.perf_counter() - began)
            await receiver.complete_message(message)
    _show("bare iterator", found)
    queue = server.create(f"b-{uuid.uuid4().hex[:8]}")
    found = []
    async with StreamHarness() as streams:
        view = await streams.add(_trigger(server, queue))
        await anyio.sleep(1)
        for number in range(count):
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asyncio.to_thread, server.send, queue, ["1"])
                while len(view.events) <= number:  # noqa: ASYNC110  (a view tells nobody)
                    await anyio.sleep(0.001)
                found.append(time.perf_counter() - began)
    _show("runtime", found)


async def measure_idle(
    server: ServiceBusServer, queues: int, watchers: int, seconds: float
) -> None:
    """Show the memory, the processor time and the requests of streams without messages."""
    names = [server.create(f"b-{uuid.uuid4().hex[:8]}") for _ in range(queues)]
    process = psutil.Process()
    before = process.memory_info().rss
    async with StreamHarness() as streams:
        for name in names:
            for number in range(watchers):
                await streams.add(_trigger(server, name, {"watcher": number}))
        while server.stats()["links"] < queues:  # noqa: ASYNC110  (a server tells nobody)
            await anyio.sleep(0.2)
        await anyio.sleep(3)
        began, stats = sum(process.cpu_times()[:2]), server.stats()
        await anyio.sleep(seconds)
        used = sum(process.cpu_times()[:2]) - began
        quiet = server.stats() == stats
        added = (process.memory_info().rss - before) / 2**20
    print(
        f"{queues} queues, {watchers} watchers each: {used / seconds:.1%} of a CPU, {added:.0f} MiB more,"
        f" {'no request' if quiet else 'requests'} in {seconds:.0f} s"
    )


def _show(name: str, found: list[float]) -> None:
    found.sort()
    print(
        f"{name:14} p50 {found[len(found) // 2] * 1000:6.1f} ms"
        f"  p95 {found[len(found) * 95 // 100] * 1000:6.1f} ms  ({len(found)} messages)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=20.0)
    arguments = parser.parse_args()
    with open_servicebus() as server:
        asyncio.run(measure_throughput(server, arguments.count, arguments.rounds))
        asyncio.run(measure_latency(server, 100))
        queue = server.create(f"b-{uuid.uuid4().hex[:8]}")
        found = latency_to_runs(
            f"servicebus:///{queue}",
            {"connection_string": server.connection_string},
            lambda body: server.send(queue, [body]),
            200,
        )
        _show("run queued", found)
        asyncio.run(measure_idle(server, 1, 100, arguments.idle_s))
        asyncio.run(measure_idle(server, 100, 1, arguments.idle_s))


if __name__ == "__main__":
    main()
