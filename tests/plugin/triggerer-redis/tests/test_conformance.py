from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from server import RedisServer
from triggerer_redis.entries import make_message
from triggerer_redis.producer import RedisSharedStreamProducer
from triggerer_redis.settings import RedisSettings
from triggerer_redis.watcher import RedisStreamEventTrigger

from triggerer.abc import BrokerMessage, install_connections
from triggerer.testing import Feature, ProducerConformance, TriggerConformance

STREAMS = ["lane-0", "lane-1"]
GROUP = "suite"


class TestRedis(ProducerConformance):
    features = frozenset(Feature) - {Feature.LOCK_RENEWAL, Feature.QUEUE, Feature.STATE}

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> Iterator[None]:
        self.server = redis_server
        with redis_server.client() as self.client:
            yield

    async def setup(self) -> None:
        self.client.flushall()

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        for value in values:
            self.client.xadd(STREAMS[lane], {"value": value})

    async def new_producer(self) -> RedisSharedStreamProducer:
        settings = RedisSettings(
            port=self.server.port,
            max_deliveries=self.max_deliveries,
            redelivery_delay_s=0.01,
        )
        return RedisSharedStreamProducer(STREAMS, group=GROUP, settings=settings)

    async def dead_letters(self) -> list[str]:
        found: list[Any] = []
        for stream in STREAMS:
            found += self.client.xrange(f"{stream}:dead-letters")
        return [fields[b"value"].decode() for _, fields in found]

    async def committed(self, lane: int = 0) -> int:
        groups = (
            self.client.xinfo_groups(STREAMS[lane]) if self.client.exists(STREAMS[lane]) else []
        )
        if not groups:
            return 0
        (group,) = groups
        return len(self.client.xrange(STREAMS[lane], "-", group["last-delivered-id"]))

    def value_of(self, event: BrokerMessage) -> str:
        assert event.value is not None
        return event.value.decode()

    async def recreate(self) -> None:
        self.client.delete(*STREAMS)

    async def seek(self, position: int, lane: int = 0) -> None:
        entries = self.client.xrange(STREAMS[lane])
        self.client.xgroup_setid(STREAMS[lane], GROUP, entries[position - 1][0] if position else 0)


class TestRedisStreamEventTrigger(TriggerConformance):
    @pytest.fixture(autouse=True)
    def _connection(self) -> None:
        install_connections({"redis": {"host": "127.0.0.1"}}.__getitem__)

    def new_trigger(self) -> RedisStreamEventTrigger:
        return RedisStreamEventTrigger(["orders", "returns"], match={"sku": "a"})

    def siblings(self) -> Sequence[RedisStreamEventTrigger]:
        return [RedisStreamEventTrigger(["returns", "orders"], start="latest")]

    def strangers(self) -> Sequence[RedisStreamEventTrigger]:
        return [
            RedisStreamEventTrigger("orders", match={"sku": "a"}),
            RedisStreamEventTrigger(["orders", "returns"], group="other", match={"sku": "a"}),
        ]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [(entry(b'{"sku": "a"}'), 1), (entry(b'{"sku": "b"}'), 0), (entry(b"\xff"), 0)]


def entry(value: bytes) -> BrokerMessage:
    fields = {b"value": value, b"shop": b"7"}
    return make_message(
        "orders", "incarnation-1", "1700000000000-0", fields, value_field="value", deliveries=1
    )
