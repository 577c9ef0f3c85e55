"""Reads CloudEvents 1.0 in the modes that brokers use: structured, batched and binary.

Source: the specification, and its bindings for HTTP, Kafka, AMQP and Pub/Sub, at github.com/cloudevents/spec.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from triggerer.abc import BrokerMessage
from triggerer.pluginkit.texts import strict_text_of, text_of

# An attribute's name has the prefix `ce_` in Kafka, `cloudEvents:` or `cloudEvents_` in AMQP, and `ce-` in HTTP and
# Pub/Sub.
_PREFIXED: Final = re.compile(r"(?:ce_|ce-|cloudEvents[:_])([a-z0-9]+)\Z", re.IGNORECASE)
_REQUIRED: Final = ("id", "source", "specversion", "type")
_CONTENT_TYPES: Final = ("content-type", "contenttype", "content_type")


def read_cloudevents(message: BrokerMessage) -> list[dict[str, Any]]:
    """Return the events of a message, each as a mapping of attribute names to values, with the data as `data`.

    In binary mode, the content type decides how the data is decoded. `data` is a JSON value for JSON (the default), and
    a string for `text/*`. For other types, the event has `data_base64` instead of `data`.

    Raises:
        ValueError: The message is no CloudEvent and no batch of CloudEvents, or the data cannot be decoded.
    """
    events = binary_events(message)
    if events is not None:
        return events
    value = message.json()
    events = value if isinstance(value, list) else [value]
    return [_structured(event) for event in events]


def binary_events(message: BrokerMessage) -> list[dict[str, Any]] | None:
    """Return the event of a message in binary mode, as a list of one; None if the message is not in binary mode.

    Raises:
        ValueError: A required attribute is missing, or the data cannot be read.
    """
    attributes = {
        found[1].lower(): text_of(value)
        for name, value in message.attributes.items()
        if (found := _PREFIXED.match(name))
    }
    if "specversion" not in attributes:
        return None
    return [_checked({**attributes, **_binary_data(message, attributes)})]


def _structured(event: Any) -> dict[str, Any]:
    if not isinstance(event, dict):
        raise ValueError("a CloudEvent is an object")
    return _checked(event)


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in _REQUIRED if not event.get(name)]
    if missing:
        raise ValueError(f"no CloudEvent: {', '.join(missing)} missing")
    return event


def _binary_data(message: BrokerMessage, attributes: Mapping[str, Any]) -> dict[str, Any]:
    value = message.value
    if not value:
        return {}
    content_type = attributes.get("datacontenttype") or next(
        (
            text_of(content)
            # In Service Bus, the content type is a system property, so it is in `position`.
            for properties in (message.attributes, message.position)
            for name, content in properties.items()
            if name.lower() in _CONTENT_TYPES and content
        ),
        None,
    )
    media = (content_type or "application/json").partition(";")[0].strip().lower()
    if media == "application/json" or media.endswith("+json"):
        return {"data": message.json()}
    if media.startswith("text/"):
        return {"data": strict_text_of(value)}
    return {"data_base64": base64.b64encode(value).decode()}
