"""`python -m tests.benchmarks.brokers.sqs [--messages N]`: the SQS producer beside the bare client, on ElasticMQ.

Throughput is measured alternately on full queues:

- `bare` receives and deletes with the vendor's client. It has as many pollers as the producer, and deletes ten at once.
- `runtime` is our producer under the real runtime with one watcher.
- `alone` is `runtime` with a separate advance for each lane.

Latency is measured with one message at a time, from just before it is sent. It ends when the message is received by the
bare client or the producer, or when a whole service on SQLite has queued the message's run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Final

import anyio
import orjson

from producers.sqs import SqsSharedStreamProducer
from producers.sqs.connecting import open_client
from producers.sqs.settings import SqsSettings
from tests.benchmarks.brokers.run_latency import latency_to_runs
from tests.services.brokers.elasticmq import ElasticMqServer, open_elasticmq
from triggerer.abc import (
    AdvanceItem,
    BaseEventTrigger,
    BrokerMessage,
    SharedStreamProducer,
    TriggerEvent,
)
from triggerer.testing import StreamHarness

_POLLERS: Final = 4
_LATENCIES: Final = 200


class Watching(BaseEventTrigger):
    """A trigger that derives an event from every message."""

    settings: ClassVar[SqsSettings]
    url: ClassVar[str]
    producer: ClassVar[type[SqsSharedStreamProducer]] = SqsSharedStreamProducer

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Watching", {}

    def shared_stream_key(self) -> Hashable:
        return self.url

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.producer(cls.url, settings=cls.settings)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[BrokerMessage]
    ) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            yield TriggerEvent(message.json())


class _Alone(SqsSharedStreamProducer):
    """The producer with a separate advance for each lane."""

    advance_lanes = SharedStreamProducer.advance_lanes

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await SqsSharedStreamProducer.advance_lanes(self, [batch])


def _settings(server: ElasticMqServer) -> SqsSettings:
    return SqsSettings.from_mapping("bench", server.connection | {"receivers": _POLLERS})


async def _bare(server: ElasticMqServer, url: str, messages: int) -> tuple[float, float]:
    """Return the messages per second of the bare client, and the processor time for each message, in µs."""
    done = 0
    async with open_client(_settings(server), url) as client:
        watch = _Watch()
        async with anyio.create_task_group() as tasks:

            async def poll() -> None:
                nonlocal done
                while done < messages:
                    answer = await client.receive_message(
                        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
                    )
                    found = answer.get("Messages", [])
                    if found:
                        await client.delete_message_batch(
                            QueueUrl=url,
                            Entries=[
                                {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]}
                                for index, message in enumerate(found)
                            ],
                        )
                    done += len(found)
                tasks.cancel_scope.cancel()

            for _ in range(_POLLERS):
                tasks.start_soon(poll)
        return watch.rate(messages)


class _Watch:
    """Measures wall-clock and processor time since its creation."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), time.process_time()

    def rate(self, messages: int) -> tuple[float, float]:
        """Return the messages per second, and the processor time for each message, in µs."""
        took, used = time.perf_counter() - self._began, time.process_time() - self._used
        return messages / took, used / messages * 1e6


async def _alone(server: ElasticMqServer, url: str, messages: int) -> tuple[float, float]:
    return await _ours(server, url, messages, _Alone)


async def _ours(
    server: ElasticMqServer,
    url: str,
    messages: int,
    producer: type[SqsSharedStreamProducer] = SqsSharedStreamProducer,
) -> tuple[float, float]:
    """Return the messages per second of the runtime, and the processor time for each message, in µs.

    The measurement begins at the first message, because importing the SDK takes a third of a second.
    """
    Watching.settings, Watching.url, Watching.producer = _settings(server), url, producer
    async with StreamHarness() as streams:
        view = await streams.add(Watching())
        while not view.events:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        watch, first = _Watch(), len(view.events)
        while len(view.events) < messages or any(
            one.outstanding for one in streams.groups.values()
        ):
            assert view.error is None, view.error
            await anyio.sleep(0.001)
        return watch.rate(messages - first)


async def _bare_latency(server: ElasticMqServer, url: str) -> list[float]:
    found: list[float] = []
    async with open_client(_settings(server), url) as client:

        async def receive() -> None:
            answer: dict[str, Any] = {}
            while not answer.get("Messages"):
                answer = await client.receive_message(QueueUrl=url, WaitTimeSeconds=10)
            received_at.append(time.perf_counter())
            handle = answer["Messages"][0]["ReceiptHandle"]
            await client.delete_message(QueueUrl=url, ReceiptHandle=handle)

        for _ in range(_LATENCIES):
            received_at: list[float] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive)
                await anyio.sleep(0.01)
                sent_at = time.perf_counter()
                await client.send_message(QueueUrl=url, MessageBody="{}")
            found.append(received_at[0] - sent_at)
    return found


async def _our_latency(server: ElasticMqServer, url: str) -> list[float]:
    found: list[float] = []
    producer = SqsSharedStreamProducer(url, settings=_settings(server))
    async with (
        open_client(_settings(server), url) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(producer.run)
        stream: Any = producer.open_stream()

        async def send() -> None:
            await anyio.sleep(0.01)
            sent_at.append(time.perf_counter())
            await client.send_message(QueueUrl=url, MessageBody="{}")

        async with aclosing(stream):
            for _ in range(_LATENCIES):
                sent_at: list[float] = []
                tasks.start_soon(send)
                await anext(stream)
                found.append(time.perf_counter() - sent_at[0])
        tasks.cancel_scope.cancel()
    await producer.aclose()
    return found


def _show(name: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    print(f"{name:45} p50 {cuts[49] * 1e3:7.1f} ms   p99 {cuts[98] * 1e3:7.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    messages = parser.parse_args().messages
    bodies = [orjson.dumps({"n": number, "text": "x" * 200}).decode() for number in range(messages)]
    readers = {"bare": _bare, "alone": _alone, "runtime": _ours}
    with open_elasticmq(heap="512m") as server:
        for kind in (".fifo", ""):
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
            for turn in range(3):
                for name, measure in readers.items():
                    url = server.create_queue(f"{name}-{turn}{kind}", visibility_s=60)
                    if kind:
                        for group in range(10):
                            server.send(url, bodies[group::10], group=f"g{group}")
                    else:
                        server.send(url, bodies)
                    found[name].append(asyncio.run(measure(server, url, messages)))
            print("FIFO queue, 10 groups" if kind else "standard queue")
            base = statistics.median(rate for rate, _ in found["bare"])
            for name, rates in found.items():
                rate, used = (statistics.median(column) for column in zip(*rates, strict=True))
                print(
                    f"  {name:8} {rate:6.0f}/s  {rate / base:5.0%} of bare  {used:6.0f} µs of CPU each"
                )
        url = server.create_queue("latency")
        _show("receive, bare client", asyncio.run(_bare_latency(server, url)))
        _show("yielded by the producer", asyncio.run(_our_latency(server, url)))
        url = server.create_queue("service")
        queued = latency_to_runs(
            "sqs:///service", server.connection, lambda body: server.send(url, [body]), _LATENCIES
        )
        _show("run is queued, whole service, SQLite", queued)


if __name__ == "__main__":
    main()
