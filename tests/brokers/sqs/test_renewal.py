"""Messages stay in flight while watchers work: in the real runtime, with filters that wait or compute."""

from __future__ import annotations

import asyncio

import pytest

from tests.brokers.sqs.conftest import Queue
from tests.brokers.sqs.driving import producer_on
from tests.services.brokers.elasticmq import ElasticMqServer
from tests.services.working import check_that_each_comes_once

PERIOD_S = 1.0
"""The visibility timeout of the queue."""


@pytest.mark.rule("the task that renews locks starves while a filter computes")
@pytest.mark.parametrize("computes", [False, True], ids=["waits", "computes"])
async def test_a_filter_that_takes_long_loses_nobodys_messages(
    elasticmq: ElasticMqServer, brief: Queue, computes: bool
) -> None:
    values = ["slow", *(f"m{number}" for number in range(20))]
    await asyncio.to_thread(brief.send, *values)
    takes = {"computes_s": PERIOD_S} if computes else {"waits_s": PERIOD_S * 3.5}
    await check_that_each_comes_once(lambda: producer_on(elasticmq, brief.url), values, **takes)
    assert await asyncio.to_thread(brief.counts) == (0, 0)
