"""One trigger for all brokers, by URL."""

from typing import Any

import pytest

from triggerer.errors import DagError
from watchers.kafka import KafkaEventTrigger
from watchers.messaging import MessageQueueTrigger


def test_a_url_makes_the_trigger_of_its_broker() -> None:
    trigger = MessageQueueTrigger("kafka:///b,a?connection=shop", match={"n": 1}, group_id="g")
    ordinary = KafkaEventTrigger(["a", "b"], connection="shop", match={"n": 1}, group_id="g")
    assert isinstance(trigger, KafkaEventTrigger)
    assert trigger.serialize() == ordinary.serialize()
    assert trigger.shared_stream_key() == ordinary.shared_stream_key()
    assert MessageQueueTrigger("kafka:///a%2Eb").serialize()[1]["topics"] == ["a.b"]


def test_a_pattern_of_topics_may_have_commas() -> None:
    """An earlier version split the pattern at its comma into two topics."""
    trigger = MessageQueueTrigger("kafka:///^orders-.{1,2}")
    assert trigger.serialize()[1]["topics"] == ["^orders-.{1,2}"]


@pytest.mark.parametrize(
    ("url", "classpath", "source"),
    [
        ("sqs:///orders.fifo", "watchers.sqs.SqsEventTrigger", {"queue": "orders.fifo"}),
        ("pubsub:///s", "watchers.pubsub.PubSubEventTrigger", {"subscription": "s"}),
        ("servicebus:///q", "watchers.servicebus.ServiceBusEventTrigger", {"queue": "q"}),
        (
            "pubsub:///projects/p/subscriptions/s",
            "watchers.pubsub.PubSubEventTrigger",
            {"subscription": "projects/p/subscriptions/s"},
        ),
        (
            "sqs:///https%3A%2F%2Fsqs.eu-central-1.amazonaws.com%2F123456789012%2Fq",
            "watchers.sqs.SqsEventTrigger",
            {"queue": "https://sqs.eu-central-1.amazonaws.com/123456789012/q"},
        ),
        (
            "servicebus:///t/Subscriptions/s",
            "watchers.servicebus.ServiceBusEventTrigger",
            {"topic": "t", "subscription": "s"},
        ),
        (
            "servicebus:///t/s",
            "watchers.servicebus.ServiceBusEventTrigger",
            {"topic": "t", "subscription": "s"},
        ),
    ],
)
def test_each_broker_has_its_scheme(url: str, classpath: str, source: dict[str, str]) -> None:
    found, arguments = MessageQueueTrigger(f"{url}?connection=c", decode="text").serialize()
    assert found == classpath
    assert source.items() <= arguments.items()
    assert (arguments["connection"], arguments["decode"]) == ("c", "text")


@pytest.mark.parametrize(
    ("url", "arguments", "message"),
    [
        (
            "amqp:///q",
            {},
            "names no known broker .*kafka://, sqs://, pubsub://, servicebus://",
        ),
        ("kafka://topic", {}, "two slashes where three belong .*kafka:///topic"),
        ("kafka://me:s3cret@host:9092/t", {}, r"names a host.*\[connections.kafka\]"),
        ("kafka:///a#b", {}, "has a # in it .write %23"),
        ("kafka:///a, b", {}, "has a space or the end of a line in it .write %20"),
        ("kafka:///a\nb", {}, "has a space or the end of a line in it"),
        (" kafka:///a", {}, "has a space or the end of a line in it"),
        ("kafka:///^orders.?x", {}, "write %3F for a . in a name"),
        ("pubsub:///projects/p/topics/t", {}, "names no source"),
        ("servicebus:///t/topics/s", {}, "names no source"),
        ("kafka:///", {}, "names no source"),
        ("kafka:///a/b", {}, "names no source"),
        ("servicebus:///a/b/c", {}, "names no source .*servicebus:///topic/subscription"),
        ("kafka:///a?group_id=g", {}, "'kafka:///a.group_id=g' must be connection=ID alone"),
        ("kafka:///a?connection=", {}, "connection=ID alone"),
        ("kafka:///a?connection=x", {"connection": "y"}, "connection is given twice"),
        ("kafka:///a", {"queue": "q"}, "KafkaEventTrigger has no argument 'queue'"),
        ("http://[", {}, "is no URL"),
        (None, {}, "must be a non-empty text"),
    ],
)
def test_a_mistake_is_named_with_the_form_that_would_do(
    url: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(DagError, match=message):
        MessageQueueTrigger(url, **arguments)
