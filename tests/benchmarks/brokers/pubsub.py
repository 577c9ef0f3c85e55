"""Compares the Pub/Sub producer with Google's bare clients, which receive and acknowledge messages.

Run with `python -m tests.benchmarks.brokers.pubsub`.

The readers below take turns on one server. The server sends messages as fast as they are acknowledged
(tests/services/brokers/pubsub/flood.go). All readers allow the same number and size of outstanding messages.

- `bare` is the asynchronous client that the producer uses. It acknowledges protobuf messages without reading them.
- `reading` is `bare`, but it also reads each message.
- `documented` and `documented-reading` are `bare` and `reading` with the client's own classes, as in its documentation.
- `threaded` is Google's own subscriber with its threads.
- `producer` is our producer without the runtime.
- `runtime` is our producer under the real runtime, without a database. One watcher makes an event of each message.

The garbage collector's thresholds and the switch interval of threads are those of the service.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, Final

import anyio
import grpc
import orjson
import uvloop
from google.cloud.pubsub_v1 import SubscriberClient
from google.pubsub_v1 import StreamingPullRequest, StreamingPullResponse, SubscriberAsyncClient
from google.pubsub_v1.services.subscriber.transports import (
    SubscriberGrpcAsyncIOTransport,
    SubscriberGrpcTransport,
)

from producers.pubsub import PubSubSharedStreamProducer
from producers.pubsub.settings import PubSubSettings
from tests.benchmarks.brokers.bare_producer import drain
from tests.benchmarks.brokers.run_latency import latency_to_runs
from tests.services.brokers.pubsub import PubSubServer, open_pubsub, open_pubsub_flood
from triggerer.abc import TriggerEvent
from triggerer.domain.events import EventSource, HasPayload, PendingEvent, WatcherRef
from triggerer.streams import Manager, RuntimeContext, TriggerSpec
from triggerer.streams.supervision.member import Member
from triggerer.testing import StreamHarness
from watchers.pubsub import PubSubEventTrigger

_OUTSTANDING: Final = 1_000
_OUTSTANDING_BYTES: Final = 100 << 20
"""The producer's defaults for outstanding messages and their bytes."""


def _path(name: str) -> str:
    return f"projects/p/subscriptions/{name}"


async def bare(host: str, name: str, count: int) -> None:
    """Acknowledge the messages of each response in one request, without reading them. Several requests run at once.

    A failed request ends the measurement. No lease is extended, because each message is acknowledged at once.
    """
    await _receive(host, name, count, look=lambda _: None)


async def _receive(
    host: str, name: str, count: int, *, look: Callable[[Any], None], by_protobuf: bool = True
) -> None:
    channel = grpc.aio.insecure_channel(host, options=[("grpc.use_local_subchannel_pool", 1)])
    client = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
    opening: Any = client.streaming_pull(retry=None, timeout=None)
    call = await opening
    await call.write(
        StreamingPullRequest(
            subscription=_path(name),
            stream_ack_deadline_seconds=60,
            max_outstanding_messages=_OUTSTANDING,
            max_outstanding_bytes=_OUTSTANDING_BYTES,
        )
    )
    received = 0
    async with anyio.create_task_group() as tasks:
        while received < count:
            answer = await call.read()
            if by_protobuf:
                answer = StreamingPullResponse.pb(answer)
            messages = answer.received_messages
            received += len(messages)
            look(messages)
            ack_ids = [one.ack_id for one in messages]
            tasks.start_soon(_acknowledge, client, name, ack_ids)
    call.cancel()
    await channel.close()


async def reading(host: str, name: str, count: int) -> None:
    """Acknowledge as `bare` does, and read the fields of each message that the runtime's event has."""
    await _receive(host, name, count, look=_read_each)


def _read_each(received: Any) -> None:
    for one in received:
        raw = one.message
        published = raw.publish_time
        attributes = raw.attributes
        {
            "value": orjson.loads(raw.data),
            "message_id": raw.message_id,
            "ordering_key": raw.ordering_key or None,
            "attributes": {name: attributes[name] for name in attributes},
            "timestamp": published.seconds * 1_000 + published.nanos // 1_000_000,
        }


async def documented(host: str, name: str, count: int) -> None:
    """Acknowledge as `bare` does, with the client's own classes."""
    await _receive(host, name, count, look=lambda _: None, by_protobuf=False)


async def documented_reading(host: str, name: str, count: int) -> None:
    """Acknowledge and read as `reading` does, with the client's own classes."""
    await _receive(host, name, count, look=_read_each_as_documented, by_protobuf=False)


def _read_each_as_documented(received: Any) -> None:
    for one in received:
        message = one.message
        {
            "value": orjson.loads(message.data),
            "message_id": message.message_id,
            "ordering_key": message.ordering_key or None,
            "attributes": dict(message.attributes),
            "timestamp": int(message.publish_time.timestamp() * 1_000),
        }


async def _acknowledge(client: SubscriberAsyncClient, name: str, ack_ids: list[str]) -> None:
    await client.acknowledge(subscription=_path(name), ack_ids=ack_ids, retry=None, timeout=10)


async def threaded(host: str, name: str, count: int) -> None:
    channel = grpc.insecure_channel(host, options=[("grpc.use_local_subchannel_pool", 1)])
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    left, done, lock = [count], threading.Event(), threading.Lock()

    def take(message: Any) -> None:
        message.ack()
        with lock:
            left[0] -= 1
            if not left[0]:
                done.set()

    future = client.subscribe(_path(name), callback=take)
    await asyncio.to_thread(done.wait)
    future.cancel()
    await asyncio.to_thread(future.result)
    client.close()


def _producer(host: str, name: str) -> PubSubSharedStreamProducer:
    settings = PubSubSettings.from_mapping("bench", {"emulator_host": host, "project": "p"})
    return PubSubSharedStreamProducer(name, settings=settings)


async def producer(host: str, name: str, count: int) -> None:
    """Read the messages with our producer, without the runtime."""
    await drain(_producer(host, name), count)


async def runtime(host: str, name: str, count: int) -> None:
    class Trigger(PubSubEventTrigger):
        def shared_stream_key(self) -> Hashable:
            return ("bench", self.subscription)

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
            return _producer(host, name)

    trigger = Trigger(name)
    sink = _Sink(count)
    spec = TriggerSpec(
        name, lambda: trigger, trigger.serialize()[1], EventSource((WatcherRef(1, 1),), None)
    )
    async with Manager(RuntimeContext(sink, restarts=False)) as manager:
        (hosted,) = manager.add([spec])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_raise_what_ends, hosted)
            await sink.done.wait()
            # Nothing reports the last advance, so look every millisecond. Over all messages this costs next to nothing.
            while any(  # noqa: ASYNC110
                one.group and one.group.outstanding for one in manager.streams.values()
            ):
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()


async def _raise_what_ends(hosted: Member) -> None:
    # Nothing reports that a trigger failed, so look for its error.
    while hosted.error is None:  # noqa: ASYNC110
        await anyio.sleep(0.1)
    raise hosted.error


class _Sink:
    """Confirms each event at once and stores nothing, because `bare` stores nothing either."""

    is_full = False

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = anyio.Event()

    async def wait_for_room(self) -> None: ...

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        event.complete(None)
        self._left -= 1
        if not self._left:
            self.done.set()


SIDES: Final[dict[str, Callable[[str, str, int], Awaitable[None]]]] = {
    "bare": bare,
    "reading": reading,
    "documented": documented,
    "documented-reading": documented_reading,
    "threaded": threaded,
    "producer": producer,
    "runtime": runtime,
}


def _measure(side: str, host: str, number: int, count: int) -> tuple[float, float]:
    """Return the messages per second, and the processor time of this process for each message, in µs."""
    gc.collect()
    # As in the service, the garbage collector skips the objects that exist now.
    gc.freeze()
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    uvloop.run(_run(SIDES[side], host, f"{side}{number}-{count}", count))
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return count / took, cpu / count * 1e6


async def _run(
    side: Callable[[str, str, int], Awaitable[None]], host: str, name: str, count: int
) -> None:
    await side(host, name, count)


async def _latency(server: PubSubServer, count: int) -> None:
    """Send one message at a time; show the latencies of the bare client and of the runtime, on two subscriptions."""
    await asyncio.to_thread(server.create, "latency")
    await asyncio.to_thread(server.create_subscription, "latency-bare", "latency")
    received: dict[str, float] = {}

    async def read_bare() -> None:
        channel = grpc.aio.insecure_channel(server.host)
        client = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
        opening: Any = client.streaming_pull(retry=None, timeout=None)
        call = await opening
        try:
            await call.write(
                StreamingPullRequest(
                    subscription="projects/tests/subscriptions/latency-bare",
                    stream_ack_deadline_seconds=60,
                )
            )
            while True:
                for one in StreamingPullResponse.pb(await call.read()).received_messages:
                    received[one.message.message_id] = time.perf_counter()
        finally:
            call.cancel()

    came: dict[str, float] = {}

    class Trigger(PubSubEventTrigger):
        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
            settings = {"emulator_host": server.host, "project": "tests"}
            return PubSubSharedStreamProducer(
                "latency", settings=PubSubSettings.from_mapping("bench", settings)
            )

        async def filter_shared_stream(self, shared_stream: Any) -> AsyncIterator[TriggerEvent]:
            async for event in super().filter_shared_stream(shared_stream):
                came[event.payload["message_id"]] = time.perf_counter()
                yield event

    sent: dict[str, float] = {}
    async with StreamHarness() as streams, anyio.create_task_group() as tasks:
        await streams.add(Trigger("latency"))
        tasks.start_soon(read_bare)
        await anyio.sleep(2)
        for number in range(count):
            at = time.perf_counter()
            (message_id,) = await asyncio.to_thread(
                server.publish, "latency", [f'{{"n": {number}}}']
            )
            sent[message_id] = at
            await anyio.sleep(0.03)
        while len(came) < count or len(received) < count:  # noqa: ASYNC110
            await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    for side, times in (("bare", received), ("runtime", came)):
        _show_latency(side, [times[one] - sent[one] for one in sent])


def _show_latency(side: str, seconds: list[float]) -> None:
    ordered = sorted(one * 1e3 for one in seconds)
    count = len(ordered)
    print(f"  {side:20}p50 {ordered[count // 2]:6.1f} ms  p99 {ordered[count * 99 // 100]:6.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=500, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument(
        "--latency",
        type=int,
        metavar="N",
        help="measure the latency of N messages, and no throughput",
    )
    arguments = parser.parse_args()
    if arguments.latency:
        with open_pubsub(is_optimized=True) as server:
            asyncio.run(_latency(server, arguments.latency))
            server.create("service")
            found = latency_to_runs(
                "pubsub:///service",
                {"emulator_host": server.host, "project": "tests"},
                lambda body: server.publish("service", [body]),
                arguments.latency,
            )
            _show_latency("run queued", found)
        return
    # Set the interpreter for all sides as triggerer/service/running.py does for the service.
    gc.set_threshold(200_000, 20, 100)
    sys.setswitchinterval(0.000_5)
    sides = arguments.sides.split(",")
    rates: dict[str, list[float]] = {side: [] for side in sides}
    costs: dict[str, list[float]] = {side: [] for side in sides}
    with open_pubsub_flood(arguments.size) as host:
        for number in range(arguments.rounds):
            for side in sides:
                rate, cost = _measure(side, host, number, arguments.messages)
                rates[side].append(rate)
                costs[side].append(cost)
                print(f"  {side:20}{rate:10,.0f} messages/s{cost:8.1f} µs of CPU each", flush=True)
    print(
        f"median of {arguments.rounds} rounds, {arguments.messages} messages of {arguments.size} bytes"
    )
    for side in sides:
        rate, cost = statistics.median(rates[side]), statistics.median(costs[side])
        share = rate / statistics.median(rates[sides[0]])
        print(
            f"  {side:20}{rate:10,.0f} messages/s{cost:8.1f} µs of CPU each  {share:5.0%} of {sides[0]}"
        )


if __name__ == "__main__":
    main()
