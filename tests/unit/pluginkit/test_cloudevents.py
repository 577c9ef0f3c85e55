"""CloudEvents in the modes of the specification."""

import json
from typing import Any

import pytest

from triggerer.abc import BrokerMessage
from triggerer.pluginkit.cloudevents import read_cloudevents

EVENT = {"id": "1", "source": "/shop", "specversion": "1.0", "type": "order.placed"}


def test_a_structured_event_is_the_value_and_a_batch_is_several() -> None:
    whole = {**EVENT, "data": {"n": 1}}
    assert read_cloudevents(BrokerMessage(json.dumps(whole).encode())) == [whole]
    assert read_cloudevents(BrokerMessage(json.dumps([whole, EVENT]).encode())) == [whole, EVENT]


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudEvents:", "cloudEvents_"])
def test_a_binary_event_has_its_attributes_in_the_messages(prefix: str) -> None:
    attributes: dict[str, Any] = {prefix + name: value.encode() for name, value in EVENT.items()}
    message = BrokerMessage(b'{"n": 1}', attributes={**attributes, "other": "x"})
    assert read_cloudevents(message) == [{**EVENT, "data": {"n": 1}}]


@pytest.mark.parametrize(
    ("content_type", "value", "data"),
    [
        ("application/json; charset=utf-8", b"[1]", {"data": [1]}),
        ("application/vnd.shop+json", b"[1]", {"data": [1]}),
        ("text/plain", b"hello", {"data": "hello"}),
        ("application/octet-stream", b"\xff", {"data_base64": "/w=="}),
        ("application/json", b"", {}),
    ],
)
def test_binary_data_is_read_as_its_content_type_says(
    content_type: str, value: bytes, data: dict[str, Any]
) -> None:
    attributes = {f"ce_{name}": text for name, text in EVENT.items()}
    (event,) = read_cloudevents(
        BrokerMessage(value, attributes={**attributes, "content-type": content_type})
    )
    assert event == {**EVENT, **data}


def test_the_content_type_of_a_binary_event_may_be_the_messages_own_property() -> None:
    """AMQP has the content type there. An earlier version rejected the message for not being JSON."""
    message = BrokerMessage(
        b"hello",
        attributes={f"cloudEvents:{name}": text for name, text in EVENT.items()},
        position={"entity": "orders", "content_type": "text/plain; charset=utf-8"},
    )
    assert read_cloudevents(message) == [{**EVENT, "data": "hello"}]


@pytest.mark.parametrize("value", [b"{}", b"3", b"[3]", b"not JSON", b'{"specversion": "1.0"}'])
def test_what_is_no_cloudevent_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_cloudevents(BrokerMessage(value))
