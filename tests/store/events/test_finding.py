"""Events are found by their message's idempotency key, or by the part of the key that names the message."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from sqlalchemy import insert

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage
from producers.kafka.positions.position import CommittedPosition, UsedOffsets
from producers.kafka.producer import KafkaSharedStreamProducer
from producers.kafka.settings import KafkaSettings
from producers.kafka.wire.cluster import Membership
from tests.store.explaining import working
from tests.store.seeding import add_asset
from tests.unit.producers.test_kafka_in_flight import Record
from triggerer.store.database.clock import utc_now
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.finding import find_events
from triggerer.store.schema.models import AssetEvent

OLD, NEW = "YMOVRwIuQmWU01awnUsYqw", "x3kPq_-OTk2zH1gT8c0aLg"
SETTINGS = KafkaSettings(bootstrap_servers="nowhere:9092")


def kafka_key(
    topic: str, offset: int, topic_id: str | None = OLD, *used: UsedOffsets, timestamp: int = 0
) -> str:
    """Return the idempotency key of a message in partition 0."""
    position = CommittedPosition(offset, topic_id=topic_id, used=used)
    lane = LaneInFlight(TopicPartition(topic, 0), Membership(1, "me"), position)
    producer = KafkaSharedStreamProducer([topic], settings=SETTINGS, group="g")
    return producer.get_idempotency_key(KafkaMessage(Record(offset, timestamp), lane, 0))


async def store(database: Database, *keys: str) -> None:
    """Store an event for each key. The events' `extra` does not contain the topic."""
    await add_asset(database, 1, "orders")
    async with database.transaction() as session:
        await record_events(session, [NewAssetEvent(1, {}, idempotency_key=key) for key in keys])


async def found(database: Database, text: str) -> list[str | None]:
    async with database.reading() as session:
        return [event.idempotency_key for event in await find_events(session, text)]


async def test_a_kafka_message_is_found_among_several_topics_whatever_extra_contains(
    database: Database,
) -> None:
    one, other = kafka_key("t1", 5, OLD), kafka_key("t2", 5, NEW)
    await store(database, one, kafka_key("t1", 50, OLD), other)
    assert await found(database, "t1/0/5") == [one]
    assert await found(database, "t2/0/5") == [other]
    assert await found(database, one) == [one]
    for text in ("t1/0/6", "t1/0", "t1", "1/0/5", "T1/0/5", "t_/0/5", "t1/0/5@"):
        assert await found(database, text) == []


async def test_the_messages_of_a_recreated_topic_are_found_beside_those_of_the_deleted_one(
    database: Database,
) -> None:
    keys = [kafka_key("t1", 5, OLD), kafka_key("t1", 5, NEW)]
    await store(database, *keys)
    assert await found(database, "t1/0/5") == keys


async def test_a_message_with_the_offset_of_a_lost_message_is_found_beside_it(
    database: Database,
) -> None:
    keys = [kafka_key("t1", 7), kafka_key("t1", 7, OLD, UsedOffsets(since=5, below=10, epoch=3))]
    await store(database, *keys)
    assert await found(database, "t1/0/7") == keys


async def test_a_message_of_brokers_without_topic_ids_is_found(database: Database) -> None:
    key = kafka_key("t1", 5, None, timestamp=1_764_000_000_000)
    await store(database, key)
    assert await found(database, "t1/0/5") == [key]


@pytest.mark.parametrize("text", [kafka_key("t1", 29_000), "t1/0/29000", "t1/0/30000"])
async def test_the_cost_does_not_grow_with_the_number_of_events(
    database: Database, text: str
) -> None:
    await add_asset(database, 1, "orders")
    rows = [
        {"asset_id": 1, "extra": {}, "timestamp": utc_now(), "idempotency_key": key}
        for offset in range(30_000)
        for key in (f"t1@{OLD}/0/{offset}",)
    ]
    async with database.transaction() as session:
        await session.execute(insert(AssetEvent), rows)
    async with database.reading() as session:
        connection = await session.connection()
        if connection.dialect.name == "postgresql":
            await connection.exec_driver_sql("ANALYZE asset_event")
        async with working(connection) as work:
            events = await find_events(session, text)
    assert len(events) == (0 if text == "t1/0/30000" else 1)
    assert work.done < 50
