"""The trigger and the settings; no server is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from producers.servicebus.settings import ServiceBusSettings
from triggerer.abc import BaseEventTrigger, BrokerMessage, Guarantee
from triggerer.domain.watchers.guarantees import guarantee_of
from triggerer.errors import ConfigurationError, DagError
from triggerer.testing import TriggerConformance
from watchers.servicebus import ServiceBusEventTrigger


def message(value: bytes | None, session: str | None = "s") -> BrokerMessage:
    return BrokerMessage(
        value,
        None if session is None else session.encode(),
        {"region": "eu", "raw": b"\xff"},
        {
            "entity": "orders", "message_id": "m1", "session_id": session, "sequence_number": 7,
            "subject": "placed", "correlation_id": None, "content_type": "application/json",
        },
        datetime(2026, 1, 2, tzinfo=UTC),
        1,
    )  # fmt: skip


class TestServiceBusEventTrigger(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return ServiceBusEventTrigger(
            "orders",
            match={"amount": {"gt": 10}, "@properties.region": "eu"},
            extra={"amount": "amount", "of": "@session_id", "number": "@sequence_number"},
        )

    def siblings(self) -> Sequence[BaseEventTrigger]:
        return [ServiceBusEventTrigger("Orders", decode="text")]

    def test_a_subscription_and_its_path_are_one_stream(self) -> None:
        path = ServiceBusEventTrigger("Orders/Subscriptions/billing")
        names = ServiceBusEventTrigger(topic="orders", subscription="billing")
        assert path.shared_stream_key() == names.shared_stream_key()
        assert path.source_arguments()["topic"] == "Orders"
        assert str(path._entity()) == "Orders/billing"

    def test_a_queue_whose_name_has_a_slash_is_no_subscription(self) -> None:
        queue = ServiceBusEventTrigger("orders/billing")
        names = ServiceBusEventTrigger(topic="orders", subscription="billing")
        assert queue.shared_stream_key() != names.shared_stream_key()

    def strangers(self) -> Sequence[BaseEventTrigger]:
        return [
            ServiceBusEventTrigger("orders", connection="other"),
            ServiceBusEventTrigger("others"),
            ServiceBusEventTrigger(topic="orders", subscription="all"),
        ]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [
            (message(json.dumps({"amount": 11}).encode()), 1),
            (message(json.dumps({"amount": 10}).encode()), 0),
            (message(b"no JSON"), 0),
            (message(json.dumps({"amount": 12}).encode(), None), 1),
        ]


def test_by_default_an_event_has_what_identifies_the_message() -> None:
    trigger = ServiceBusEventTrigger(topic="orders", subscription="all")
    assert trigger.default_extra(message(b"{}"), {"a": 1}) == {
        "value": {"a": 1},
        "message_id": "m1",
        "entity": "orders",
        "session_id": "s",
        "sequence_number": 7,
        "properties": {"region": "eu", "raw": "base64:/w=="},
        "timestamp": 1_767_312_000_000,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "either queue, or topic"),
        ({"queue": "a", "topic": "b", "subscription": "c"}, "either queue, or topic"),
        ({"topic": "b"}, "go together"),
        ({"queue": "a", "subscription": "c"}, "go together"),
        ({"queue": ""}, "queue must be a non-empty text"),
        ({"queue": "Endpoint=sb://x/;SharedAccessKey=s3cret"}, "belongs in .connections"),
    ],
)
def test_arguments_that_name_no_entity_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(DagError, match=says) as refused:
        ServiceBusEventTrigger(**arguments)
    assert "s3cret" not in str(refused.value)


async def test_what_comes_again_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"servicebus": {"connection_string": KEY, "max_deliveries": 5}}
    monkeypatch.setattr("triggerer.abc._resolve_connection", connection.__getitem__)
    facts = await ServiceBusEventTrigger("orders").describe_delivery(ask=True)
    promised = guarantee_of(facts, ack_timeout=timedelta(minutes=5))
    assert promised.guarantee is Guarantee.EFFECTIVELY_ONCE
    assert "sequence number" in promised.reason
    assert facts.drops_after == 5


def test_a_trigger_is_made_without_the_sdk() -> None:
    """The parsing of a DAG file needs no client library."""
    program = (
        "import sys, watchers.servicebus as it; it.ServiceBusEventTrigger('q').shared_stream_key()"
    )
    shown = "print([name for name in sys.modules if name.startswith(('azure', 'pydantic'))])"
    found = subprocess.run(
        [sys.executable, "-c", f"{program}; {shown}"], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


KEY = "Endpoint=sb://example.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=secret="


def test_a_connection_has_a_connection_string_or_a_namespace() -> None:
    of_key = ServiceBusSettings.from_mapping("servicebus", {"connection_string": KEY})
    assert of_key.host == "example.servicebus.windows.net"
    assert "secret" not in repr(of_key)
    of_identity = ServiceBusSettings.from_mapping(
        "servicebus", {"namespace": "example.servicebus.windows.net", "client_id": "1-2"}
    )
    assert of_identity.host == "example.servicebus.windows.net"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "connection_string or fully_qualified_namespace is missing"),
        ({"connection_string": KEY, "fully_qualified_namespace": "x"}, "has both"),
        ({"connection_string": "secret"}, "has no Endpoint"),
        ({"connection_string": f"Endpoint=sb://;{KEY.partition(';')[2]}"}, "has no Endpoint"),
        ({"fully_qualified_namespace": "sb://x.example/"}, "a name without a scheme"),
        ({"connection_string": "Endpoint=sb://x/;secret=1"}, "has no SharedAccessKeyName"),
        ({"connection_strin": KEY}, "did you mean 'connection_string'"),
        ({"connection_string": KEY, "max_sessions": 0}, "must be above 0"),
        ({"connection_string": KEY, "transport": "http"}, "one of amqp or websocket"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        ServiceBusSettings.from_mapping("servicebus", settings)
    assert "secret" not in str(refused.value)
