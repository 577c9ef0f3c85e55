"""The lag of a queue that an operator sees, on ElasticMQ."""

from __future__ import annotations

import asyncio

import pytest

from producers.sqs.lag import measure_lag
from producers.sqs.settings import SqsSettings
from tests.brokers.sqs.conftest import Queue
from tests.brokers.sqs.driving import driving
from tests.services.brokers.elasticmq import ElasticMqServer
from triggerer.abc import SourceLag
from triggerer.errors import BrokerRefused
from triggerer.testing.conformance.resolutions import nothing


def settings_on(server: ElasticMqServer) -> SqsSettings:
    return SqsSettings.from_mapping("test", server.connection)


async def test_it_tells_what_waits_and_what_is_in_flight(queue: Queue) -> None:
    settings = settings_on(queue.server)
    assert (await measure_lag(settings, queue.url)).messages == 0
    await asyncio.to_thread(queue.send, *"abc")
    found = await measure_lag(settings, queue.url)
    expected = {"waiting": 3, "in flight": 0, "delayed": 0}
    assert found == SourceLag(3, expected, "approximate")
    async with driving(queue.producer(), nothing) as driver:
        await driver.count(3)
        found = await measure_lag(settings, queue.url.rpartition("/")[2])
        assert found.messages == 3
        assert found.by_part["in flight"] == 3


async def test_a_queue_that_is_not_there_is_refused(elasticmq: ElasticMqServer) -> None:
    with pytest.raises(BrokerRefused, match="not-there"):
        await measure_lag(settings_on(elasticmq), "not-there")
