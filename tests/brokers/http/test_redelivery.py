"""When the producer delivers failed items again."""

from __future__ import annotations

from contextlib import aclosing
from types import SimpleNamespace

import anyio
import pytest

from producers.http import producer as module
from producers.http.producer import HttpSharedStreamProducer, Polled
from producers.http.settings import HttpSettings
from tests.brokers.http.server import Server
from triggerer.abc import AdvanceItem, AdvanceOutcome
from triggerer.pluginkit.delivery import DeliveryPolicy

FAILED = AdvanceOutcome(acked=0, failed=1, rejected=0)


async def test_each_failed_item_comes_again_after_its_own_delay(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(DeliveryPolicy, "delay", lambda _, failures: 10.0 * failures)
    server.document = ["a", "b"]
    polled = Polled(url=server.url, poke_interval=1_000, items="@value")
    producer = HttpSharedStreamProducer(polled, settings=HttpSettings(), connection="http")
    async with aclosing(producer), aclosing(producer.open_stream()) as stream:
        with anyio.fail_after(30):
            _, first = await anext(stream)
            _, second = await anext(stream)
            await producer.advance([AdvanceItem(first, FAILED)])
            now = 9.0
            # The failure of another item does not delay the first item.
            await producer.advance([AdvanceItem(second, FAILED)])
            now = 11.0
            message, again = await anext(stream)
            assert (again, message.deliveries) == (first, 2)
            await producer.advance([AdvanceItem(first, FAILED)])
            now = 20.0
            # The first item has failed twice, so it waits longer than the second item, which has failed once.
            assert (await anext(stream))[1] is second
            await producer.advance([AdvanceItem(second, FAILED)])
            now = 31.0
            assert (await anext(stream))[1] is first
            # Items that are due together come in the order of their first delivery.
            await producer.advance([AdvanceItem(first, FAILED)])
            now = 100.0
            assert [(await anext(stream))[1] for _ in range(2)] == [first, second]
