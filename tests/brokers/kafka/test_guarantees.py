"""The guarantees of topics, from the brokers' answers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import anyio
import pytest

from producers.kafka import guarantees as guarantees
from producers.kafka.wire.metadata_request import DescribeTopicsRequest
from tests.services.brokers.kafka import KafkaServer
from tests.services.process import free_ports
from tests.services.silent import open_silent_server
from triggerer import abc
from triggerer.abc import Guarantee
from triggerer.domain.watchers.guarantees import PromisedGuarantee, guarantee_of
from watchers.kafka import KafkaEventTrigger

PLAIN = (
    "effectively once: offsets are committed after the events are durable; a repeated message is recognised by the"
    " topic's id, partition and offset"
)


async def promised(
    monkeypatch: pytest.MonkeyPatch, servers: str, *topics: str, max_deliveries: int = 0
) -> PromisedGuarantee:
    def resolve(connection: str) -> Mapping[str, Any]:
        assert connection == "kafka"
        return {"bootstrap_servers": servers, "max_deliveries": max_deliveries}

    monkeypatch.setattr(abc, "_resolve_connection", resolve)
    facts = await KafkaEventTrigger(topics).describe_delivery(ask=True)
    return guarantee_of(facts, ack_timeout=timedelta(minutes=5))


async def test_a_topic_that_keeps_messages_for_less_than_a_watcher_may_take_is_warned_of(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t-{uuid.uuid4().hex[:10]}" for _ in range(3)]
    kafka_server.create_topic(names[0])
    kafka_server.create_topic(names[1], retention_ms="60000")
    kafka_server.create_topic(names[2], retention_ms="-1")
    found = await promised(monkeypatch, kafka_server.bootstrap_servers, *names)
    assert str(found) == PLAIN
    (warning,) = map(str, found.warnings)
    assert "keeps a message for 0:01:00" in warning
    others = names[0], names[2]
    assert (await promised(monkeypatch, kafka_server.bootstrap_servers, *others)).warnings == ()


async def test_a_topic_with_the_longest_retention_keeps_its_messages_for_ever(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t-{uuid.uuid4().hex[:10]}" for _ in range(2)]
    kafka_server.create_topic(names[0], retention_ms=str(2**63 - 1))
    found = await promised(monkeypatch, kafka_server.bootstrap_servers, names[0])
    assert (str(found), found.warnings) == (PLAIN, ())
    kafka_server.create_topic(names[1], retention_ms="60000")
    (warning,) = (await promised(monkeypatch, kafka_server.bootstrap_servers, *names)).warnings
    assert "keeps a message for 0:01:00" in str(warning)


async def test_a_compacted_topic_is_warned_of(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"t-{uuid.uuid4().hex[:10]}"
    # A compacted topic that never deletes ignores `retention.ms`, so this value must cause no warning.
    kafka_server.create_topic(name, cleanup_policy="compact", retention_ms="1000")
    found = await promised(monkeypatch, kafka_server.bootstrap_servers, name)
    assert found.guarantee is Guarantee.EFFECTIVELY_ONCE
    (warning,) = map(str, found.warnings)
    assert warning.startswith(f"topic {name} is compacted: ")


async def test_a_topic_of_dead_letters_that_will_not_be_there_is_warned_of(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t-{uuid.uuid4().hex[:10]}" for _ in range(2)]
    for name in (*names, f"{names[1]}.dead-letter"):
        kafka_server.create_topic(name)
    servers = kafka_server.bootstrap_servers
    (warning,) = (await promised(monkeypatch, servers, *names, max_deliveries=10)).warnings
    assert str(warning).startswith(f"there is no topic {names[0]}.dead-letter for dead letters, ")
    assert f"--create --topic {names[0]}.dead-letter" in str(warning)
    kafka_server.create_topic(third := f"t-{uuid.uuid4().hex[:10]}")
    (warning,) = (await promised(monkeypatch, servers, *names, third, max_deliveries=10)).warnings
    assert ".dead-letter, nor 1 more, for dead letters, " in str(warning)
    assert (await promised(monkeypatch, servers, names[1], max_deliveries=10)).warnings == ()
    assert (await promised(monkeypatch, servers, *names, max_deliveries=0)).warnings == ()


class BeforeTopicIds(DescribeTopicsRequest):
    """A request that fails as if the broker were older than Kafka 2.8, and knew no topic ids."""

    def prepare(self, versions: Any) -> Any:
        raise NotImplementedError


async def test_brokers_without_topic_ids_are_warned_of(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"t-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name)
    monkeypatch.setattr(guarantees, "DescribeTopicsRequest", BeforeTopicIds)
    found = await promised(monkeypatch, kafka_server.bootstrap_servers, name)
    assert "the topic's name, the message's time, partition and offset" in str(found)
    (warning,) = map(str, found.warnings)
    assert warning.startswith("the brokers have no topic ids: ")


async def test_each_topic_that_a_pattern_matches_now_is_looked_at(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"t-{uuid.uuid4().hex[:10]}"
    pattern = f"^{prefix}-.*"
    found = await promised(monkeypatch, kafka_server.bootstrap_servers, pattern)
    assert f"only the 0 topics that match {pattern} now were looked up" in str(found)
    assert (found.warnings, found.sources) == ((), ())
    kafka_server.create_topic(f"{prefix}-a")
    kafka_server.create_topic(f"{prefix}-b", retention_ms="60000")
    kafka_server.create_topic(f"{prefix}-c", cleanup_policy="compact")
    kafka_server.create_topic(f"other-{prefix}", retention_ms="1000")
    # A pattern never matches a dead-letter topic.
    kafka_server.create_topic(f"{prefix}-a.dead-letter", retention_ms="1000")
    found = await promised(monkeypatch, kafka_server.bootstrap_servers, pattern)
    assert found.guarantee is Guarantee.EFFECTIVELY_ONCE
    assert f"only the 3 topics that match {pattern} now were looked up; check again" in str(found)
    short, compacted = map(str, found.warnings)
    assert "keeps a message for 0:01:00" in short
    assert compacted.startswith(f"topic {prefix}-c is compacted: ")
    assert [source.split()[1] for source in found.sources] == [f"{prefix}-{one}" for one in "abc"]


async def test_where_nobody_answers_the_settings_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    for topics in ("orders", "^orders-.*"):
        with anyio.fail_after(5):
            found = await promised(monkeypatch, f"127.0.0.1:{port}", topics)
        assert str(found) == PLAIN
        assert found.warnings == ()


async def test_streams_of_one_group_that_share_a_topic_are_known_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abc, "_resolve_connection", lambda _: {"bootstrap_servers": "k:1"})

    async def sources(trigger: KafkaEventTrigger) -> set[str]:
        facts = await trigger.describe_delivery(ask=False)
        return set(guarantee_of(facts, ack_timeout=timedelta(minutes=5)).sources)

    both = await sources(KafkaEventTrigger(["a", "b"], group_id="g"))
    assert both & await sources(KafkaEventTrigger("a", group_id="g", connection="other"))
    assert not both & await sources(KafkaEventTrigger("a"))
    assert not both & await sources(KafkaEventTrigger("c", group_id="g"))


async def test_brokers_that_do_not_answer_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_silent_server() as port:
        with anyio.fail_after(4.5):
            found = await promised(monkeypatch, f"127.0.0.1:{port}", "orders")
    assert str(found) == PLAIN
