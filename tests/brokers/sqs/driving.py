"""Producers with short delays, and the driver of the conformance suite for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio

from producers.sqs import SqsSharedStreamProducer
from producers.sqs.settings import SqsSettings
from tests.services.brokers.sqs_client import SqsClient
from triggerer.abc import BrokerMessage
from triggerer.testing.conformance.driver import ACKED, Driver, Resolve
from triggerer.testing.conformance.driver import driving as suite_driving

PATIENCE_S = 30.0


def producer_on(server: SqsClient, queue: str, **settings: Any) -> SqsSharedStreamProducer:
    """A producer whose polls and delays are short."""
    quick = {"receive_wait_s": 1, "redelivery_delay_s": 0.1, "redelivery_delay_max_s": 0.4}
    return SqsSharedStreamProducer(
        queue, settings=SqsSettings.from_mapping("test", server.connection | quick | settings)
    )


def value_of(event: BrokerMessage) -> str:
    return (event.value or b"").decode()


def driving(
    producer: SqsSharedStreamProducer, resolve: Resolve = lambda _: ACKED
) -> AbstractAsyncContextManager[Driver]:
    """Run a producer while the block lasts; see `triggerer.testing.conformance.driver`."""
    return suite_driving(producer, value_of=value_of, resolve=resolve, patience_s=PATIENCE_S)


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Check the condition again and again until it is true, because the server does not announce changes."""
    with anyio.move_on_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.02)
        return
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")
