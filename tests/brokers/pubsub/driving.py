"""Producers with short delays, and the driver of the conformance suite for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from producers.pubsub import PubSubSharedStreamProducer
from producers.pubsub.settings import PubSubSettings
from tests.services.brokers.pubsub_admin import PROJECT
from triggerer.abc import AdvanceOutcome, BrokerMessage
from triggerer.testing.conformance.driver import ACKED, Delivery, Driver, driving

TIMEOUT_S = 30.0


def settings_for(host: str, **settings: Any) -> PubSubSettings:
    quick = {
        "emulator_host": host,
        "project": PROJECT,
        "redelivery_delay_s": 0.05,
        "redelivery_delay_max_s": 0.2,
        "ack_deadline_s": 10,
    }
    return PubSubSettings.from_mapping("test", quick | settings)


def producer_on(host: str, subscription: str, **settings: Any) -> PubSubSharedStreamProducer:
    return PubSubSharedStreamProducer(subscription, settings=settings_for(host, **settings))


def value_of(event: Any) -> str:
    assert isinstance(event, BrokerMessage)
    return (event.value or b"").decode()


def driven(
    producer: PubSubSharedStreamProducer,
    resolve: Callable[[Delivery], AdvanceOutcome | None] = lambda _: ACKED,
) -> AbstractAsyncContextManager[Driver]:
    """Run a producer while the block lasts."""
    return driving(producer, value_of=value_of, resolve=resolve, patience_s=TIMEOUT_S)
