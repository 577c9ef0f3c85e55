"""Ranges of offsets from a real broker, and the number of its requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient

from tests.services.brokers.kafka import KafkaServer
from triggerer import kafka_ranges
from triggerer.errors import BrokenRanges, BrokerRefused
from triggerer.testing import StreamHarness
from watchers.kafka import KafkaRangeTrigger

pytestmark = pytest.mark.full


class Watching:
    """A watcher of ranges that can be stopped and started again with other arguments."""

    def __init__(self, topics: str) -> None:
        self.topics = topics
        self.bookmark: Any = None
        self.keys: list[str | None] = []
        self.made: list[tuple[int, int, int]] = []
        """Partition, from and to of each event."""
        self.extras: list[dict[str, Any]] = []

    async def look(self, **arguments: Any) -> list[tuple[int, int, int]]:
        """Run the watcher with these arguments until no further event comes; return the new ranges, sorted."""
        async with StreamHarness() as streams:
            if self.bookmark is not None:
                streams.bookmarks[1] = self.bookmark
            view = await streams.add(KafkaRangeTrigger(self.topics, interval=0.1, **arguments))
            await until_quiet(view)
            self.bookmark = streams.bookmarks.get(1)
        new = [event.payload for event in view.events]
        self.keys += [event.key for event in view.events]
        self.extras = new
        found = sorted((one["partition"], one["from"], one["to"]) for one in new)
        self.made += found
        return found


async def until_quiet(view: Any) -> None:
    with anyio.fail_after(20):
        seen, quiet = -1, 0
        while quiet < 4:
            await anyio.sleep(0.15)
            assert view.error is None, view.error
            quiet = quiet + 1 if len(view.events) == seen else 0
            seen = len(view.events)


@pytest.fixture
def watching(kafka_server: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch) -> Watching:
    monkeypatch.setenv(
        "TRIGGERER__CONNECTIONS__KAFKA__BOOTSTRAP_SERVERS", kafka_server.bootstrap_servers
    )
    return Watching(topic)


async def test_each_offset_is_in_one_range_over_restarts_and_other_arguments(
    kafka_server: KafkaServer, topic: str, watching: Watching
) -> None:
    assert await watching.look() == [(0, 0, 10)]
    assert await watching.look() == []
    kafka_server.produce(topic, [*"klmno"])
    assert await watching.look(max_offsets=2, start="latest") == [
        (0, 10, 12),
        (0, 12, 14),
        (0, 14, 15),
    ]
    await anyio.to_thread.run_sync(lambda: kafka_server.add_partitions(topic, 2))
    kafka_server.produce(topic, ["p"], partition=1)
    assert await watching.look(start="latest") == [(1, 0, 1)]
    assert len(watching.keys) == len(set(watching.keys))


async def test_deleted_records_are_told_and_left_out(
    kafka_server: KafkaServer, topic: str, watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    await watching.look()
    kafka_server.produce(topic, [*"klmno"])
    kafka_server.delete_records(topic, 0, before=13)
    assert await watching.look() == [(0, 13, 15)]
    assert watching.extras[0]["deleted"] == 3
    assert any("deleted the 3 offsets 10 to 12" in text for text in caplog.messages)


async def test_a_recreated_topic_begins_at_its_beginning(
    kafka_server: KafkaServer, topic: str, watching: Watching
) -> None:
    await watching.look()
    old = watching.extras[0]["topic_id"]
    kafka_server.delete_topic(topic)
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, [str(n) for n in range(20)])
    assert await watching.look() == [(0, 0, 20)]
    assert watching.extras[0]["topic_id"] != old
    assert len(watching.keys) == len(set(watching.keys))


async def test_a_log_that_was_cut_and_written_beyond_its_old_end_continues_at_the_cut(
    kafka_server: KafkaServer, topic: str, watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    await watching.look()
    await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
    kafka_server.produce(topic, [*"tuvwxyz"])
    assert await watching.look() == [(0, 5, 12)]
    assert watching.extras[0]["rewound_from"] == 10
    assert any("the log was cut at 5" in text for text in caplog.messages)


async def test_a_range_ends_before_an_open_transaction(
    kafka_server: KafkaServer, topic: str, watching: Watching
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_server.bootstrap_servers, transactional_id=topic
    )
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"open")
            kafka_server.produce(topic, ["beside"])
            assert await watching.look() == [(0, 0, 10)]
        assert await watching.look() == [(0, 10, 13)], "two messages and the marker of the commit"
    finally:
        await producer.stop()


async def test_an_interval_costs_one_look_up_of_topics_and_two_of_offsets(
    kafka_server: KafkaServer, topic: str, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watching.look()
    sent: list[str] = []
    send = AIOKafkaClient.send

    async def counted(self: Any, node: int, request: Any, **arguments: Any) -> Any:
        sent.append(type(request).__name__)
        return await send(self, node, request, **arguments)

    async with StreamHarness() as streams:
        streams.bookmarks[1] = watching.bookmark
        await streams.add(KafkaRangeTrigger(topic, interval=0.5))
        await anyio.sleep(0.3)
        monkeypatch.setattr(AIOKafkaClient, "send", counted)
        await anyio.sleep(1.0)
    looks = sent.count("DescribeTopicsRequest")
    assert 1 <= looks <= 2
    assert sent.count("OffsetRequest") == 2 * looks
    assert set(sent) == {"DescribeTopicsRequest", "OffsetRequest"}


async def test_a_task_sees_before_spark_does_that_messages_are_gone(
    kafka_server: KafkaServer, topic: str, watching: Watching
) -> None:
    await watching.look()
    events = [SimpleNamespace(extra=extra) for extra in watching.extras]
    servers = kafka_server.bootstrap_servers
    whole = kafka_ranges(events)
    assert whole.check(bootstrap_servers=servers) == whole
    kafka_server.delete_records(topic, 0, before=4)
    with pytest.raises(BrokenRanges, match="retention has deleted 4 of 10 offsets"):
        whole.check(bootstrap_servers=servers)
    assert whole.check(bootstrap_servers=servers, on_data_loss="skip").offsets == 6
    await anyio.to_thread.run_sync(lambda: kafka_server.cut_log(topic, at=5))
    with pytest.raises(BrokenRanges, match="the log ends at 5"):
        whole.check(bootstrap_servers=servers)
    with pytest.raises(BrokerRefused, match="no topic 'absent'"):
        kafka_ranges([SimpleNamespace(extra={**watching.extras[0], "topic": "absent"})]).check(
            bootstrap_servers=servers
        )
