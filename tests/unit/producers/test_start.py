"""The argument `start` of a Kafka stream, and which topics a pattern finds."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from producers.kafka.connection.topics import Topics
from producers.kafka.positions.start import Start
from producers.kafka.settings import KafkaSettings
from triggerer.errors import DagError
from watchers.kafka import KafkaEventTrigger

SIX = datetime(2026, 11, 22, 6, tzinfo=UTC)
SETTINGS = KafkaSettings.from_mapping("kafka", {"bootstrap_servers": "x"})


@pytest.mark.parametrize(
    ("value", "json"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("2026-11-22T06:00Z", "2026-11-22T06:00:00Z"),
        ("2026-11-22T08:00:00+02:00", "2026-11-22T06:00:00Z"),
        (SIX, "2026-11-22T06:00:00Z"),
        (SIX.astimezone(timezone(timedelta(hours=5))), "2026-11-22T06:00:00Z"),
        ({"b": {1: 5}, "a": {"0": "7"}}, {"a": {"0": 7}, "b": {"1": 5}}),
    ],
)
def test_equal_starts_are_equal_json(value: Any, json: Any) -> None:
    assert Start.parse(value).to_json() == json
    assert Start.parse(json) == Start.parse(value)
    assert KafkaEventTrigger("t", start=value).serialize()[1]["start"] == json


@pytest.mark.parametrize(
    "value",
    ["first", "", None, 3, {}, "2026-11-22T06:00", {"a": 3}, {"a": {"x": 1}}, {"a": {0: -1}}],
)
def test_any_other_start_is_refused_when_the_file_is_parsed(value: Any) -> None:
    with pytest.raises(DagError, match="start is "):
        KafkaEventTrigger("t", start=value)


def test_a_pattern_finds_topics_but_none_of_dead_letters() -> None:
    topics = Topics.parse(["^orders-"], SETTINGS)
    assert topics.pattern is not None
    names = ["orders-eu", "orders-eu.dead-letter", "old-orders-eu", "orders"]
    assert [name for name in names if topics.pattern.match(name)] == ["orders-eu"]
    assert Topics.parse(["b", "a", "b"], SETTINGS) == Topics(("a", "b"))


def test_a_pattern_stands_alone_and_is_a_regular_expression() -> None:
    with pytest.raises(DagError, match="must be alone"):
        KafkaEventTrigger(["^a", "b"])
    with pytest.raises(DagError, match="no pattern of topics"):
        KafkaEventTrigger("^(")
    assert KafkaEventTrigger("^a").shared_stream_key() != KafkaEventTrigger("a").shared_stream_key()
