"""The delivery limit, and the topic that receives the dead letters."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition, errors
from aiokafka.producer.message_accumulator import MessageAccumulator

from producers.kafka import KafkaMessage
from producers.kafka.dead_letter import DeadLetters
from producers.kafka.in_flight import LaneInFlight
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.settings import KafkaSettings
from producers.kafka.wire.cluster import Membership
from tests.brokers.kafka.driving import (
    ACKED,
    FAILED,
    REJECTED,
    AdvanceOutcome,
    driving,
    producer_on,
)
from tests.services.brokers.kafka import KafkaServer
from triggerer.errors import BrokerError

EVIDENCE = {"reason": "for a test"}


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"d-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name)
    return name


def bad_fails(message: object) -> AdvanceOutcome:
    return FAILED if message.value == b"bad" else ACKED  # type: ignore[attr-defined]


def bad_is_rejected(message: KafkaMessage) -> AdvanceOutcome:
    return REJECTED if message.value == b"bad" else ACKED


async def dead_letters(server: KafkaServer, topic: str) -> list[ConsumerRecord]:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=server.bootstrap_servers, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        batches = await consumer.getmany(timeout_ms=3000)
    finally:
        await consumer.stop()
    return [record for records in batches.values() for record in records]


@pytest.mark.rule(
    "S10: a rejected message comes once, a failed one until it is parked", "L3: no endless loop"
)
async def test_a_message_that_fails_too_often_is_set_aside_and_the_rest_goes_on(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter")
    kafka_server.produce(topic, ["a", "bad", "c"], key="k")
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic, max_deliveries=3)
    async with driving(producer, bad_fails) as driver:
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 3})
    assert driver.values.count("bad") == 3
    assert driver.values[-1] == "c"
    (letter,) = await dead_letters(kafka_server, f"{topic}.dead-letter")
    assert (letter.key, letter.value) == (b"k", b"bad")
    headers = {
        name.removeprefix("triggerer.dead-letter."): value.decode()
        for name, value in letter.headers
    }
    topic_id = headers.pop("topic-id")
    assert driver.keys[0] == f"{topic}@{topic_id}/0/0"
    assert headers == {
        "topic": topic,
        "partition": "0",
        "offset": "1",
        "group": topic,
        "deliveries": "3",
        "acked": "0",
        "failed": "1",
        "rejected": "0",
        "reason": "1 of 1 watchers failed on delivery 3",
    }


async def test_deliveries_are_counted_across_restarts(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter")
    kafka_server.produce(topic, ["bad", "b"])
    servers = kafka_server.bootstrap_servers
    deliveries = 0
    for _ in range(3):
        producer = producer_on(
            servers, topic, topic, max_deliveries=4,
            redelivery_delay_s=60, redelivery_delay_max_s=60,
        )  # fmt: skip
        async with driving(producer, bad_fails) as driver:
            await driver.until(lambda: any(m.value == b"bad" for m in driver.advanced))
            deliveries += driver.values.count("bad")
    # Usually each producer of the loop delivers "bad" once. If its random delay is short, a producer delivers "bad"
    # twice. So check only the sum.
    async with driving(producer_on(servers, topic, topic, max_deliveries=4), bad_fails) as driver:
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 2})
        deliveries += driver.values.count("bad")
    assert deliveries == 4
    assert len(await dead_letters(kafka_server, f"{topic}.dead-letter")) == 1


async def test_without_a_limit_a_message_is_delivered_for_ever(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, ["bad"])
    producer = producer_on(
        kafka_server.bootstrap_servers, topic, topic, max_deliveries=0,
        redelivery_delay_s=0.001, redelivery_delay_max_s=0.002,
    )  # fmt: skip
    async with driving(producer, bad_fails) as driver:
        await driver.settled(25)
    assert kafka_server.committed_offsets(topic, topic) == {0: 0}


async def test_a_dead_letter_topic_that_is_missing_loses_nothing_and_is_named(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("producers.kafka.dead_letter._WRITE_TIMEOUT_S", 1.0)
    kafka_server.create_topic(f"{topic}-other", 1)
    kafka_server.produce(topic, ["bad", "b"])
    kafka_server.produce(f"{topic}-other", ["fine"])
    producer = producer_on(
        kafka_server.bootstrap_servers, [topic, f"{topic}-other"], topic,
        max_deliveries=1, dead_letter_topic="{topic}.trouble",
    )  # fmt: skip
    stands: list[tuple[object, str | None]] = []
    producer.use_standing(lambda lane, why: stands.append((lane, why)))
    async with driving(producer, bad_fails) as driver:
        await driver.until(lambda: any("cannot be set aside" in text for text in caplog.messages))
        assert kafka_server.committed_offsets(topic, topic) == {0: 0}
        assert kafka_server.committed_offsets(topic, f"{topic}-other") == {0: 1}
        kafka_server.create_topic(f"{topic}.trouble")
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 2})
    message = next(text for text in caplog.messages if "cannot be set aside" in text)
    assert f"'{topic}.trouble'" in message
    assert "create it: kafka-topics.sh --create" in message
    (lane, why), *_ = stands
    assert lane == TopicPartition(topic, 0)
    assert f"its message cannot be set aside: dead letter of <KafkaMessage {topic}[0]@0>" in str(
        why
    )
    assert stands[-1] == (TopicPartition(topic, 0), None)
    assert len(await dead_letters(kafka_server, f"{topic}.trouble")) == 1


@pytest.mark.rule("18: a rejected message goes to the broker's dead letters, or is parked")
async def test_a_rejected_message_goes_to_the_dead_letter_topic_and_is_passed(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter")
    kafka_server.produce(topic, ["a", "bad", "bad", "c"])
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    async with driving(producer, bad_is_rejected) as driver:
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 4})
        assert all(producer.dead_letters_rejected(message) for message in driver.seen)
    assert driver.values == ["a", "bad", "bad", "c"]
    letters = await dead_letters(kafka_server, f"{topic}.dead-letter")
    assert [letter.value for letter in letters] == [b"bad", b"bad"]
    headers = dict(letters[0].headers)
    assert headers["triggerer.dead-letter.reason"] == b"1 of 1 watchers rejected it"
    assert headers["triggerer.dead-letter.offset"] == b"1"


async def test_what_is_set_aside_already_needs_no_dead_letter(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter")
    kafka_server.produce(topic, ["bad"])
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    aside = AdvanceOutcome(acked=0, failed=0, rejected=1, is_set_aside=True)
    async with driving(producer, lambda _: aside) as driver:
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 1})
    assert not await dead_letters(kafka_server, f"{topic}.dead-letter")


async def test_without_a_dead_letter_topic_the_runtime_is_to_set_it_aside(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, ["bad", "c"])
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    async with driving(producer, bad_is_rejected) as driver:
        await driver.settled(2)
        assert not producer.dead_letters_rejected(driver.seen[0])
        assert driver.values == ["bad", "c"]
        # An operator may create the topic later, without a restart of the service.
        kafka_server.create_topic(f"{topic}.dead-letter")
        with anyio.fail_after(20):
            while not producer.dead_letters_rejected(driver.seen[0]):  # noqa: ASYNC110  (the broker sends no notice)
                await anyio.sleep(0.2)


async def test_a_missing_dead_letter_topic_is_known_before_the_first_dead_letter_of_a_pattern(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    kafka_server.produce(topic, ["a"])
    servers = kafka_server.bootstrap_servers
    producer = producer_on(servers, f"^{topic}", topic, metadata_max_age_ms=500)
    async with driving(producer) as driver:
        await driver.count(1)
        assert not producer.dead_letters_rejected(driver.seen[0])
        assert f"there is no topic {topic}.dead-letter for dead letters" in caplog.text
        # The producer also looks for the dead-letter topic of each topic that the pattern finds later.
        kafka_server.create_topic(f"{topic}-later")
        kafka_server.produce(f"{topic}-later", ["b"])
        await driver.count(2)
        with anyio.fail_after(20):
            while producer.dead_letters_rejected(driver.seen[1]):  # noqa: ASYNC110  (the producer sends no notice)
                await anyio.sleep(0.2)


async def test_where_the_topic_takes_nothing_the_message_comes_again_to_be_set_aside(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter", max_message_bytes="100")
    kafka_server.produce(topic, ["bad" * 100, "c"])
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)

    def resolve(message: KafkaMessage) -> AdvanceOutcome:
        if message.offset:
            return ACKED
        return replace(REJECTED, is_set_aside=not producer.dead_letters_rejected(message))

    async with driving(producer, resolve) as driver:
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 2})
    assert driver.values.count("bad" * 100) == 2
    assert any("cannot be set aside" in text for text in caplog.messages)


def message_of(topic: str, value: bytes | None, key: bytes | None = None) -> KafkaMessage:
    partition = TopicPartition(topic, 0)
    lane = LaneInFlight(partition, Membership(1, "me"), CommittedPosition(7, failures=3))
    record = ConsumerRecord(topic, 0, 7, 1, 0, key, value, None, 0, 0, ())
    return KafkaMessage(record, lane, 0)


@asynccontextmanager
async def dead_letters_of(server: KafkaServer) -> AsyncIterator[DeadLetters]:
    settings = KafkaSettings(bootstrap_servers=server.bootstrap_servers)
    letters = DeadLetters(settings, "group")
    try:
        yield letters
    finally:
        await letters.aclose()


async def test_a_message_with_neither_key_nor_value_is_set_aside(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter")
    async with dead_letters_of(kafka_server) as letters:
        await letters.write(message_of(topic, None), EVIDENCE)
    (letter,) = await dead_letters(kafka_server, f"{topic}.dead-letter")
    assert (letter.key, letter.value) == (None, b"")
    assert ("triggerer.dead-letter.null-value", b"True") in letter.headers


async def test_a_message_larger_than_the_clients_own_limit_is_set_aside(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter", max_message_bytes=str(4 << 20))
    async with dead_letters_of(kafka_server) as letters:
        await letters.write(message_of(topic, b"x" * (2 << 20)), EVIDENCE)
    (letter,) = await dead_letters(kafka_server, f"{topic}.dead-letter")
    assert len(letter.value) == 2 << 20


async def test_a_client_that_has_given_up_is_replaced_by_another(
    kafka_server: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka_server.create_topic(f"{topic}.dead-letter")

    def gap(*_: object, **__: object) -> None:
        raise errors.OutOfOrderSequenceNumber

    async with dead_letters_of(kafka_server) as letters:
        with monkeypatch.context() as patched:
            patched.setattr(MessageAccumulator, "drain_by_nodes", gap)
            with pytest.raises(BrokerError):
                await letters.write(message_of(topic, b"first"), EVIDENCE)
        await letters.write(message_of(topic, b"second"), EVIDENCE)
    (letter,) = await dead_letters(kafka_server, f"{topic}.dead-letter")
    assert letter.value == b"second"
