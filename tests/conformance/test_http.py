"""Runs the conformance suites on the producer that polls URLs, and on its trigger.

A list on a test server stands in for the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest

from producers.http import HttpSharedStreamProducer
from producers.http.producer import Polled
from producers.http.reading import Reader
from producers.http.settings import HttpSettings
from tests.brokers.http.server import serving
from triggerer.abc import BaseEventTrigger, BrokerMessage, SharedStreamProducer
from triggerer.testing import Feature, ProducerConformance, TriggerConformance
from watchers.http import HttpPollTrigger


class TestPolledItems(ProducerConformance):
    # Without ordering: the producer remembers items one by one, so a failed item does not delay later ones.
    features = frozenset(
        {
            Feature.REDELIVERY,
            Feature.IDEMPOTENCY,
            Feature.SIZES,
            Feature.DUMP,
            Feature.STATE,
        }
    )

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with serving() as self.server:
            yield

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        self.server.document = [*self.server.document, *({"name": value} for value in values)]

    async def new_producer(self) -> SharedStreamProducer:
        polled = Polled(url=self.server.url, poke_interval=0.01, items="@value", item_key="name")
        return HttpSharedStreamProducer(polled, settings=HttpSettings(), connection="http")

    async def committed(self, lane: int = 0) -> int:
        known = set((self.state.value or {"known": []})["known"])
        page = Reader("@value", "name", None).read(orjson.dumps(self.server.document), "it")
        return sum(found.digest in known for found in page.found)

    def value_of(self, event: BrokerMessage) -> str:
        value: str = event.json()["name"]
        return value


class TestHttpPollTrigger(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return HttpPollTrigger(
            "https://api.example.com/orders",
            items="data.items",
            item_key="id",
            cursor={"path": "next", "param": "after"},
            match={"amount": {"gt": 10}},
        )

    def siblings(self) -> Sequence[BaseEventTrigger]:
        return [
            HttpPollTrigger(
                "https://api.example.com/orders",
                items="data.items",
                item_key="id",
                cursor={"path": "next", "param": "after"},
                extra={"id": "id"},
                partition_key="day",
            )
        ]

    def strangers(self) -> Sequence[BaseEventTrigger]:
        url = "https://api.example.com/orders"
        return [
            HttpPollTrigger(url),
            HttpPollTrigger(url, poke_interval=5),
            HttpPollTrigger(url, items="data.items"),
            HttpPollTrigger(url, first="skip"),
            HttpPollTrigger(url, connection="other"),
        ]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [(item(b'{"amount": 11}'), 1), (item(b'{"amount": 9}'), 0), (item(b"\xff"), 0)]


def item(value: bytes) -> BrokerMessage:
    return BrokerMessage(value, position={"url": "/orders", "item_key": 1})
