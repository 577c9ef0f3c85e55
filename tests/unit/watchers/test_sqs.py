"""The trigger of SQS queues: its identity, its events, and what it promises."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from triggerer import abc
from triggerer.abc import BrokerMessage, TriggerEvent
from triggerer.errors import ConfigurationError, DagError
from watchers.messaging import MessageQueueTrigger
from watchers.sqs import SqsEventTrigger


@pytest.fixture(autouse=True)
def stated(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The connection's settings; a test may add to them."""
    settings: dict[str, str] = {}
    monkeypatch.setattr(abc, "_resolve_connection", lambda _: settings)
    return settings


MESSAGE = BrokerMessage(
    b'{"total": 7}',
    b"customer-1",
    {"source": "shop", "raw": b"\xff"},
    {"queue": "orders.fifo", "message_id": "m-1", "group_id": "customer-1", "sequence_number": "9"},
    datetime(2026, 11, 24, tzinfo=UTC),
    2,
)


async def _events(trigger: SqsEventTrigger, *messages: BrokerMessage) -> list[TriggerEvent]:
    async def stream() -> Any:
        for message in messages:
            yield message

    return [event async for event in trigger.filter_shared_stream(stream())]


async def test_an_event_says_what_the_contract_has() -> None:
    (event,) = await _events(SqsEventTrigger("orders.fifo"), MESSAGE)
    assert event.payload == {
        "value": {"total": 7},
        "message_id": "m-1",
        "queue": "orders.fifo",
        "group_id": "customer-1",
        "sequence_number": "9",
        "attributes": {"source": "shop", "raw": "base64:/w=="},
        "timestamp": 1_795_478_400_000,
    }


async def test_match_extra_and_partition_key_read_the_messages_properties() -> None:
    trigger = SqsEventTrigger(
        "orders.fifo",
        match={"@attributes.source": "shop", "@deliveries": {"lt": 3}},
        extra={"total": "total", "customer": "@group_id"},
        partition_key="@group_id",
    )
    (event,) = await _events(trigger, MESSAGE)
    assert event.payload == {"total": 7, "customer": "customer-1"}
    assert event.partition_key == "customer-1"


def test_watchers_with_equal_queue_and_connection_share_a_stream() -> None:
    one = SqsEventTrigger("orders", match={"total": 1})
    other = SqsEventTrigger("orders", decode="text")
    assert one.shared_stream_key() == other.shared_stream_key()
    assert one.shared_stream_key() != SqsEventTrigger("orders", connection="b").shared_stream_key()


def test_it_can_be_made_again_and_named_by_a_url() -> None:
    trigger = MessageQueueTrigger("sqs:///orders?connection=shop", match={"total": 1})
    path, arguments = trigger.serialize()
    assert path == "watchers.sqs.SqsEventTrigger"
    assert SqsEventTrigger(**arguments).serialize() == trigger.serialize()
    assert (arguments["queue"], arguments["connection"]) == ("orders", "shop")


@pytest.mark.parametrize("queue", ["", None, 5])
def test_a_queue_that_is_no_text_is_refused(queue: Any) -> None:
    with pytest.raises(DagError, match="queue must be a non-empty text"):
        SqsEventTrigger(queue)


def test_a_dag_file_is_read_without_the_sdk() -> None:
    program = "import sys, watchers.sqs; print([m for m in sys.modules if 'boto' in m or m == 'pydantic'])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_sdk_is_found_when_the_plugin_is_loaded() -> None:
    program = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'aiobotocore' else real(name, *a)\n"
        "import watchers.sqs"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: No module named 'aiobotocore'" in done.stderr


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123/q", "HTTPS://SQS.eu-west-1.amazonaws.com:443/123/q/"),
        ("https://sqs.eu-west-1.amazonaws.com/123/q", "https://eu-west-1.queue.amazonaws.com/123/q"),
        ("https://sqs.us-east-1.amazonaws.com/123/q", "https://queue.amazonaws.com/123/q"),
        ("http://localhost:9324/000/q", "http://LOCALHOST:9324/000/q"),
    ],
)  # fmt: skip
def test_all_spellings_of_a_url_are_one_stream(one: str, other: str) -> None:
    assert SqsEventTrigger(one).shared_stream_key() == SqsEventTrigger(other).shared_stream_key()


def test_another_account_region_or_case_is_another_stream() -> None:
    others = [
        "https://sqs.eu-west-1.amazonaws.com/123/q",
        "https://sqs.eu-west-1.amazonaws.com/456/q",
        "https://sqs.eu-west-2.amazonaws.com/123/q",
        "https://sqs.eu-west-1.amazonaws.com/123/Q",
        "http://localhost:9324/123/q",
        "http://localhost:9325/123/q",
        "q",
    ]
    assert len({SqsEventTrigger(one).shared_stream_key() for one in others}) == len(others)


_IRELAND = {"region": "eu-west-1", "account": "123"}


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (_IRELAND, "https://sqs.eu-west-1.amazonaws.com/123/q"),
        (_IRELAND, "https://eu-west-1.queue.amazonaws.com/123/q/"),
        ({"region": "us-east-1", "account": "123"}, "https://queue.amazonaws.com/123/q"),
        ({"region": "cn-north-1", "account": "1"}, "https://sqs.cn-north-1.amazonaws.com.cn/1/q"),
        (
            {"region": "eu-west-1", "role_arn": "arn:aws:iam::123:role/team/reader"},
            "https://sqs.eu-west-1.amazonaws.com/123/q",
        ),
        (_IRELAND | {"endpoint_url": "http://LOCALHOST:9324/"}, "http://localhost:9324/123/q"),
    ],
)
def test_name_and_url_are_one_stream_where_the_connection_says_whose_queue_a_name_is(
    stated: dict[str, str], settings: dict[str, str], url: str
) -> None:
    stated.update(settings)
    assert SqsEventTrigger(url).shared_stream_key() == ("sqs", "sqs", "q")
    assert SqsEventTrigger("q").shared_stream_key() == ("sqs", "sqs", "q")


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "https://sqs.eu-west-1.amazonaws.com/123/q"),
        ({"region": "eu-west-1"}, "https://sqs.eu-west-1.amazonaws.com/123/q"),
        ({"account": "123"}, "https://sqs.eu-west-1.amazonaws.com/123/q"),
        (_IRELAND, "https://sqs.eu-west-1.amazonaws.com/456/q"),
        (_IRELAND, "https://sqs.eu-west-2.amazonaws.com/123/q"),
        (_IRELAND | {"endpoint_url": "http://localhost:9324"}, "http://localhost:9325/123/q"),
        (
            {"region": "eu-west-1", "account": "456", "role_arn": "arn:aws:iam::123:role/r"},
            "https://sqs.eu-west-1.amazonaws.com/123/q",
        ),
    ],
)
def test_a_url_is_a_stream_of_its_own_where_that_is_not_said_or_is_another_queue(
    stated: dict[str, str], settings: dict[str, str], url: str
) -> None:
    stated.update(settings)
    assert SqsEventTrigger(url).shared_stream_key() == ("sqs", "sqs", url)


def test_a_url_needs_its_connection_and_a_name_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> Any:
        raise ConfigurationError("there is no connection")

    monkeypatch.setattr(abc, "_resolve_connection", refuse)
    assert SqsEventTrigger("q").shared_stream_key() == ("sqs", "sqs", "q")
    with pytest.raises(ConfigurationError):
        SqsEventTrigger("https://sqs.eu-west-1.amazonaws.com/123/q").shared_stream_key()


@pytest.mark.parametrize(
    ("queue", "says"),
    [
        ("", "must be a non-empty text"),
        (
            "arn:aws:sqs:eu-central-1:123456789012:orders",
            "its name, 'orders', or its URL, 'https://sqs.eu-central-1.amazonaws.com/123456789012/orders'",
        ),
        ("https://host:port/1/q", "the queue's URL is invalid: Port"),
        ("https://me:s3cret@sqs.eu-central-1.amazonaws.com/1/q", "has a user or a password in it"),
        ("sqs://orders", "is no URL of a queue"),
        ("https://sqs.eu-central-1.amazonaws.com/", "is no URL of a queue"),
    ],
)
def test_what_names_no_queue_is_refused_in_the_dag_file(queue: str, says: str) -> None:
    with pytest.raises(DagError) as refused:
        SqsEventTrigger(queue)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)
