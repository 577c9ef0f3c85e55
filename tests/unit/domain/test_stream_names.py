"""The names of streams that people read."""

from collections.abc import Hashable
from pathlib import Path

import pytest

from triggerer.abc import BaseEventTrigger
from triggerer.domain.watchers.stream_names import readable_key, stream_name
from triggerer.errors import PluginError
from watchers.directory import DirectoryFileDeleteTrigger, FileDeleteTrigger
from watchers.http import HttpPollTrigger
from watchers.kafka import KafkaEventTrigger
from watchers.pubsub import PubSubEventTrigger
from watchers.servicebus import ServiceBusEventTrigger
from watchers.sqs import SqsEventTrigger


@pytest.mark.parametrize(
    ("trigger", "name"),
    [
        (KafkaEventTrigger("orders", group_id="billing"), "kafka orders (group billing)"),
        (
            KafkaEventTrigger(["b", "a"], group_id="g", connection="eu"),
            "kafka a, b (group g, connection eu)",
        ),
        (SqsEventTrigger("orders"), "sqs orders"),
        (PubSubEventTrigger("orders", connection="eu"), "pubsub orders (connection eu)"),
        (ServiceBusEventTrigger("Orders"), "servicebus orders"),
        (ServiceBusEventTrigger(topic="T", subscription="S"), "servicebus t/s"),
        (
            HttpPollTrigger("http://127.0.0.1:9/status", poke_interval=30.0),
            "http http://127.0.0.1:9/status (every 30 s)",
        ),
        (DirectoryFileDeleteTrigger(Path("/in"), "go.csv"), "directory /in (every 5 s)"),
        (FileDeleteTrigger("/in/go.csv", poke_interval=0.5), "file /in/go.csv (every 0.5 s)"),
    ],
)
def test_a_trigger_of_ours_says_what_it_reads(trigger: BaseEventTrigger, name: str) -> None:
    assert stream_name(trigger.describe_stream(), trigger.shared_stream_key()) == name


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("inbox", "inbox"),
        (("imap", "mail.example", None, 993), "imap mail.example 993"),
        (("imap", ("a", None, 2.0), (None,)), "imap (a 2)"),
        (("imap", frozenset({"b", "a"})), "imap a, b"),
        (7, "7"),
    ],
)
def test_a_plugin_that_says_nothing_has_the_parts_of_its_key(key: Hashable, words: str) -> None:
    assert readable_key(key) == words
    assert stream_name(None, key) == words
    assert stream_name(" \n", key) == words


def test_a_name_is_one_line_that_leaves_room_for_others() -> None:
    assert stream_name("two\nlines\x00here", "key") == "two lines here"
    assert len(stream_name("x" * 1000, "key")) == 200


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(PluginError, match=r"describe_stream\(\) must return a text or None, not 5"):
        stream_name(5, "key")
