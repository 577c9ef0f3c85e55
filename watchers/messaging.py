"""One trigger for the queues and topics of all brokers, named by a URL."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from triggerer.errors import DagError
from triggerer.pluginkit.arguments import argument_hint
from triggerer.pluginkit.message_trigger import MessageTrigger

_Names = Callable[[list[str]], dict[str, Any]]


def _topics(parts: list[str]) -> dict[str, Any]:
    (topics,) = parts
    # A URL has one pattern or several names. A pattern may contain commas, so it is not split.
    return {"topics": topics if topics.startswith("^") else topics.split(",")}


def _queue(parts: list[str]) -> dict[str, Any]:
    (queue,) = parts
    return {"queue": queue}


def _subscription(parts: list[str]) -> dict[str, Any]:
    match parts:
        case [_] | ["projects", _, "subscriptions", _]:
            return {"subscription": "/".join(parts)}
    raise ValueError


def _queue_or_subscription(parts: list[str]) -> dict[str, Any]:
    match parts:
        case [_]:
            return _queue(parts)
        case [topic, subscription]:
            return {"topic": topic, "subscription": subscription}
        case [topic, word, subscription] if word.lower() == "subscriptions":
            # `<topic>/subscriptions/<subscription>` is how Service Bus itself writes the path.
            return {"topic": topic, "subscription": subscription}
    raise ValueError


_SCHEMES: Final[Mapping[str, tuple[str, str, _Names]]] = {
    "kafka": (
        "KafkaEventTrigger",
        "kafka:///topic, kafka:///topic,topic or kafka:///^pattern",
        _topics,
    ),
    "sqs": ("SqsEventTrigger", "sqs:///queue", _queue),
    "pubsub": ("PubSubEventTrigger", "pubsub:///subscription", _subscription),
    "servicebus": (
        "ServiceBusEventTrigger",
        "servicebus:///queue or servicebus:///topic/subscription",
        _queue_or_subscription,
    ),
}


class MessageQueueTrigger:
    """Makes the trigger of a URL's broker: `MessageQueueTrigger("sqs:///orders", match={…})` is an `SqsEventTrigger`.

    The result is an instance of the broker's own class, and shares a stream with an equal trigger of that class.

    Args:
        url: `kafka:///topic,topic`, `kafka:///^pattern`, `sqs:///queue`, `pubsub:///subscription`,
            `pubsub:///projects/PROJECT/subscriptions/NAME`, `servicebus:///queue` or
            `servicebus:///topic/subscription`. If the URL ends with `?connection=ID`, the section `[connections.ID]` of
            the configuration is used. Percent-encode `?`, `#`, `%`, spaces and line ends, and each `/` within a name.
        arguments: The other arguments of the broker's trigger.
    Raises:
        DagError: The URL has another form, the broker's trigger has no such argument, or the broker's package
            is not installed.
    """

    def __new__(cls, url: str, **arguments: Any) -> MessageTrigger:  # type: ignore[misc]
        parts = _split(url)
        class_name, form, names_of = _SCHEMES[parts.scheme]
        path = [unquote(part) for part in parts.path.removeprefix("/").split("/")]
        if parts.netloc:
            raise DagError(
                f"{url!r} names a host, or has two slashes where three belong",
                hint=f"write {form}; the broker's address and login belong in [connections.{parts.scheme}]",
            )
        if parts.fragment:
            raise DagError(f"{url!r} has a # in it", hint="write %23 if it is part of a name")
        try:
            if not all(path):
                raise ValueError
            names = names_of(path)
        except ValueError as error:
            raise DagError(f"{url!r} names no source", hint=f"write {form}") from error
        if clash := sorted({*names, *_connection(url, parts.query, form)} & arguments.keys()):
            raise DagError(f"{clash[0]} is given twice: in {url!r} and as an argument")
        trigger_class = _load(parts.scheme, class_name)
        known = inspect.signature(trigger_class).parameters
        if unknown := sorted(arguments.keys() - known.keys()):
            raise DagError(
                f"{url!r}: {class_name} has no argument {unknown[0]!r}",
                hint=argument_hint(unknown[0], known),
            )
        try:
            trigger: MessageTrigger = trigger_class(
                **names, **_connection(url, parts.query, form), **arguments
            )
        except TypeError as error:
            raise DagError(f"{url!r}: {error}") from error
        return trigger


def _split(url: Any) -> SplitResult:
    if not isinstance(url, str) or not url:
        raise DagError(f"url must be a non-empty text, not {url!r}")
    if re.search(r"[\s\0-\x1f]", url):
        # Refuse spaces and control characters, because URL parsers drop some of them silently.
        raise DagError(
            f"{url!r} has a space or the end of a line in it",
            hint="write %20 for a space that is part of a name",
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise DagError(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise DagError(f"{url!r} names no known broker", hint=f"known: {known}")
    return parts


def _connection(url: str, query_text: str, form: str) -> dict[str, str]:
    query = parse_qs(query_text, keep_blank_values=True)
    if not query:
        return {}
    values = query.pop("connection", [])
    if query or len(values) != 1 or not values[0]:
        raise DagError(
            f"the query of {url!r} must be connection=ID alone",
            hint=f"write {form}, then ?connection=ID; match, decode and so on are arguments of the trigger; write %3F"
            " for a ? in a name",
        )
    return {"connection": values[0]}


def _load(scheme: str, class_name: str) -> type[Any]:
    try:
        module = importlib.import_module(f"watchers.{scheme}")
    except ImportError as error:
        raise DagError(
            f"a trigger of {scheme}:// cannot be made: {error}",
            hint=f"pip install 'triggerer[{scheme}]'",
        ) from error
    found: type[Any] = getattr(module, class_name)
    return found
