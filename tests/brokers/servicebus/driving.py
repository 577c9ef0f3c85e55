"""Makes a producer for the tests' Service Bus server, with short delays, and drives it as the conformance suites do."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from producers.servicebus import ServiceBusSharedStreamProducer
from producers.servicebus.entity import EntityPath
from producers.servicebus.settings import ServiceBusSettings
from tests.services.brokers.servicebus import ServiceBusServer
from triggerer.abc import BrokerMessage
from triggerer.testing.conformance.driver import ACKED, Driver, Resolve, driving

TIMEOUT_S = 30.0


def settings_for(connection_string: str, **settings: Any) -> ServiceBusSettings:
    quick = {
        "connection_string": connection_string,
        "redelivery_delay_s": 0.05,
        "redelivery_delay_max_s": 0.2,
    }
    return ServiceBusSettings.from_mapping("test", quick | settings)


def producer_on(
    server: ServiceBusServer, queue: str, subscription: str | None = None, **settings: Any
) -> ServiceBusSharedStreamProducer:
    return ServiceBusSharedStreamProducer(
        EntityPath(queue, subscription),
        settings=settings_for(
            settings.pop("connection_string", server.connection_string), **settings
        ),
    )


def value_of(event: Any) -> str:
    assert isinstance(event, BrokerMessage)
    return (event.value or b"").decode()


def drive(
    producer: ServiceBusSharedStreamProducer, resolve: Resolve = lambda _: ACKED
) -> AbstractAsyncContextManager[Driver]:
    return driving(producer, value_of=value_of, resolve=resolve, patience_s=TIMEOUT_S)
