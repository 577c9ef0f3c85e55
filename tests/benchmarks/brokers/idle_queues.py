"""Measures the cost of watchers without messages, by broker: `python -m tests.benchmarks.brokers.idle_queues`.

The cases are one watcher, 100 watchers on one queue, and 100 queues with one watcher each. A separate process runs the
watchers under the real runtime, without a database. A proxy counts the process's requests to the broker. These counts
are rough.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import anyio
import psutil

from tests.services.brokers.elasticmq import open_elasticmq
from tests.services.brokers.kafka import BehindProxy, open_kafka
from tests.services.brokers.pubsub import open_pubsub
from tests.services.brokers.servicebus import open_servicebus
from tests.services.brokers.servicebus.service import connection_string
from tests.services.process import free_ports
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy
from triggerer.abc import install_connections
from triggerer.testing import StreamHarness

_MANY: Final = 100
_TRIGGERS: Final = {
    "kafka": "KafkaEventTrigger",
    "sqs": "SqsEventTrigger",
    "pubsub": "PubSubEventTrigger",
    "servicebus": "ServiceBusEventTrigger",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A broker behind a proxy, a function that creates a queue, and the settings of the connection."""

    proxy: TcpProxy
    create: Callable[[str], Any]
    connection: dict[str, Any]


@contextmanager
def _kafka() -> Iterator[Source]:
    (port,) = free_ports(1)
    with (
        open_tcp_proxy(port) as proxy,
        open_kafka(behind_proxy=BehindProxy(port, proxy.port)) as server,
    ):
        yield Source(proxy, server.create_topic, {"bootstrap_servers": f"127.0.0.1:{proxy.port}"})


@contextmanager
def _sqs() -> Iterator[Source]:
    with open_elasticmq() as server, open_tcp_proxy(server.port) as proxy:
        endpoint = {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        yield Source(proxy, server.create_queue, server.connection | endpoint)


@contextmanager
def _pubsub() -> Iterator[Source]:
    with (
        open_pubsub(is_optimized=True) as server,
        open_tcp_proxy(int(server.host.rpartition(":")[2])) as proxy,
    ):
        connection = {"emulator_host": f"127.0.0.1:{proxy.port}", "project": "tests"}
        yield Source(proxy, server.create, connection)


@contextmanager
def _servicebus() -> Iterator[Source]:
    with open_servicebus() as server, open_tcp_proxy(server.port) as proxy:
        yield Source(proxy, server.create, {"connection_string": connection_string(proxy.port)})


_SOURCES: Final = {"kafka": _kafka, "sqs": _sqs, "pubsub": _pubsub, "servicebus": _servicebus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default=",".join(_SOURCES))
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each measurement")
    parser.add_argument(
        "--settle", type=float, default=15.0, help="seconds from the start to the measurement"
    )
    parser.add_argument("--host", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.host:
        asyncio.run(_host(**json.loads(arguments.host)))
        return
    print("| broker | watchers | requests/s | MiB | CPU % | threads | connections |")
    print("| :-- | :-- | --: | --: | --: | --: | --: |", flush=True)
    for broker in arguments.brokers.split(","):
        with _SOURCES[broker]() as source:
            names = [f"idle-{number}" for number in range(_MANY)]
            for name in names:
                source.create(name)
            for shape, queues, each in (
                ("1", names[:1], 1),
                (f"{_MANY} on one queue", names[:1], _MANY),
                (f"{_MANY} queues with one each", names, 1),
            ):
                row = _measure(broker, source, queues, each, arguments)
                print(f"| {broker} | {shape} | {row} |", flush=True)


def _measure(
    broker: str, source: Source, queues: list[str], each: int, arguments: argparse.Namespace
) -> str:
    what = {"broker": broker, "queues": queues, "each": each, "connection": source.connection}
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.brokers.idle_queues",
        "--host",
        json.dumps(what),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        try:
            while (line := host.stdout.readline()) != b"ready\n":
                if not line:
                    raise RuntimeError("the process ended before its watchers ran")
            # The work right after the start would count as the cost of idling.
            time.sleep(arguments.settle)
            process = psutil.Process(host.pid)
            sent, cpu, began = source.proxy.sent, sum(process.cpu_times()[:2]), time.monotonic()
            time.sleep(arguments.seconds)
            took = time.monotonic() - began
            cpu = sum(process.cpu_times()[:2]) - cpu
            requests = (source.proxy.sent - sent) / took
            memory = process.memory_full_info().uss / 2**20
            connections = len(process.net_connections("tcp"))
            return (
                f"{requests:.2f} | {memory:.0f} | {cpu / took * 100:.1f} | {process.num_threads()}"
                f" | {connections}"
            )
        finally:
            host.kill()


async def _host(broker: str, queues: list[str], each: int, connection: dict[str, Any]) -> None:
    """Host the watchers until killed."""
    gc.set_threshold(200_000, 20, 100)
    install_connections(lambda _: connection)
    trigger = getattr(import_module(f"watchers.{broker}"), _TRIGGERS[broker])
    async with StreamHarness() as streams:
        for name in queues:
            for number in range(each):
                hosted = await streams.add(trigger(name, match={"n": number}))
                if hosted.error is not None:
                    raise hosted.error
        print("ready", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    main()
