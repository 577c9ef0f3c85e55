"""Where a stream begins to read, and what it commits."""

import base64
import json
import uuid

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from tests.brokers.kafka.driving import (
    ACKED,
    FAILED,
    NOBODY,
    REJECTED,
    driving,
    producer_on,
    read,
)
from tests.services.brokers.kafka import KafkaServer


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"t-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name)
    return name


def write(server: KafkaServer, topic: str, *values: str, partition: int = 0) -> None:
    server.produce(topic, [*values], partition=partition)


async def test_a_new_group_starts_at_the_earliest_message(
    kafka_server: KafkaServer, topic: str
) -> None:
    write(kafka_server, topic, "a", "b", "c")
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as driver:
        await driver.count(3)
    assert driver.values == ["a", "b", "c"]


@pytest.mark.rule("a subscriber that is created again reads from the wrong position")
async def test_start_latest_holds_from_the_first_start_on_and_skips_nothing_after_it(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    write(kafka_server, topic, "before")
    async with driving(producer_on(servers, topic, topic, start="latest")):
        await wait_for_commit(kafka_server, topic, 1)
    write(kafka_server, topic, "between")
    async with driving(producer_on(servers, topic, topic, start="latest")) as second:
        await second.count(1)
    assert second.values == ["between"]


async def test_a_partition_added_later_is_read_from_its_beginning_even_with_start_latest(
    kafka_server: KafkaServer, topic: str
) -> None:
    async with driving(
        producer_on(kafka_server.bootstrap_servers, topic, topic, start="latest")
    ) as driver:
        await wait_for_commit(kafka_server, topic, 0)
        kafka_server.add_partitions(topic, 2)
        write(kafka_server, topic, "on the new partition", partition=1)
        await driver.count(1)
    assert driver.values == ["on the new partition"]


async def test_only_what_transactions_commit_is_delivered_and_committed_past(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    async with (
        AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-a") as writer,
        AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-b") as other,
    ):
        for value in ("a", "lost", "b", "lost too", "c"):
            await writer.begin_transaction()
            await writer.send_and_wait(topic, value.encode(), partition=0)
            is_kept = len(value) == 1
            await (writer.commit_transaction() if is_kept else writer.abort_transaction())
        await other.begin_transaction()
        await other.send_and_wait(topic, b"d", partition=0)
        async with driving(producer_on(servers, topic, topic)) as driver:
            await driver.settled(3)
            assert driver.values == [*"abc"]
            await other.commit_transaction()
            await driver.settled(4)
            assert driver.values == [*"abcd"]


async def test_only_advance_commits(kafka_server: KafkaServer, topic: str) -> None:
    write(kafka_server, topic, "a", "b", "c")
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    async with driving(producer, lambda message: ACKED if message.value == b"a" else None) as one:
        await one.count(3)
        await one.settled(1)
    assert kafka_server.committed_offsets(topic, topic) == {0: 1}
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as two:
        await two.settled(2)
        assert kafka_server.committed_offsets(topic, topic) == {0: 3}
    assert two.values == ["b", "c"]


async def test_the_commit_is_there_when_advance_returns(
    kafka_server: KafkaServer, topic: str
) -> None:
    write(kafka_server, topic, *map(str, range(50)))
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as driver:
        await driver.settled(50)
        assert kafka_server.committed_offsets(topic, topic) == {0: 50}


@pytest.mark.rule(
    "12: the position never passes a failed message: not in its batch, nor later, nor after a restart",
    "the message at an offset fails, and the next batch succeeds and commits past this offset",
)
async def test_a_failed_message_is_never_passed_in_its_batch_or_a_later_one(
    kafka_server: KafkaServer, topic: str
) -> None:
    write(kafka_server, topic, "a", "bad", "c", "d")
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic, max_deliveries=0)
    commits: set[int] = set()

    def resolve(message: object) -> object:
        commits.update(kafka_server.committed_offsets(topic, topic).values())
        return FAILED if message.value == b"bad" else ACKED  # type: ignore[attr-defined]

    async with driving(producer, resolve) as driver:  # type: ignore[arg-type]
        await driver.until(lambda: driver.values.count("bad") >= 4)
        write(kafka_server, topic, "e")
        await driver.until(lambda: driver.values.count("bad") >= 6)
    assert kafka_server.committed_offsets(topic, topic) == {0: 1}
    assert max(commits) == 1
    async with driving(producer_on(kafka_server.bootstrap_servers, topic, topic)) as after_restart:
        await after_restart.settled(4)
    assert after_restart.values == ["bad", "c", "d", "e"]


async def test_a_message_that_recovers_is_followed_by_the_rest_once(
    kafka_server: KafkaServer, topic: str
) -> None:
    write(kafka_server, topic, "a", "shaky", "c")
    attempts = 0

    def resolve(message: object) -> object:
        nonlocal attempts
        if message.value == b"shaky":  # type: ignore[attr-defined]
            attempts += 1
            return FAILED if attempts <= 3 else ACKED
        return ACKED

    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    async with driving(producer, resolve) as driver:  # type: ignore[arg-type]
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 3})
    # "shaky" is delivered four times. "c" follows the first and the second delivery. The third delivery is alone. The
    # fourth succeeds, and then "c" follows for the last time.
    assert driver.values[:1] == ["a"]
    assert driver.values.count("shaky") == 4
    assert driver.values.count("c") == 3
    assert driver.values[-1] == "c"


async def test_other_partitions_go_on_while_one_waits(kafka_server: KafkaServer) -> None:
    topic = f"t-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(topic, 2)
    write(kafka_server, topic, "bad", partition=0)
    producer = producer_on(
        kafka_server.bootstrap_servers, topic, topic, max_deliveries=0, redelivery_delay_s=5.0,
        redelivery_delay_max_s=5.0,
    )  # fmt: skip
    async with driving(
        producer, lambda message: FAILED if message.value == b"bad" else ACKED
    ) as driver:
        await driver.until(lambda: "bad" in driver.values)
        write(kafka_server, topic, *map(str, range(20)), partition=1)
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 0, 1: 20})


async def test_what_nobody_was_there_to_see_is_held_and_not_counted_as_a_failure(
    kafka_server: KafkaServer, topic: str
) -> None:
    write(kafka_server, topic, "a")
    there = False
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic, max_deliveries=2)
    async with driving(producer, lambda _: ACKED if there else NOBODY) as driver:
        await driver.count(5)
        assert kafka_server.committed_offsets(topic, topic) == {0: 0}
        there = True
        await driver.until(lambda: kafka_server.committed_offsets(topic, topic) == {0: 1})


async def test_rejected_messages_are_passed_and_not_delivered_again(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(kafka_server, topic, "not for us", "b")
    producer = producer_on(kafka_server.bootstrap_servers, topic, topic)
    async with driving(
        producer, lambda message: REJECTED if message.offset == 0 else ACKED
    ) as driver:
        await driver.settled(2)
    assert kafka_server.committed_offsets(topic, topic) == {0: 2}
    assert driver.values == ["not for us", "b"]
    assert any("rejected" in text and f"{topic}[0]@0" in text for text in caplog.messages)


@pytest.mark.rule("the committed position has expired, and reading silently goes on somewhere else")
async def test_an_expired_position_is_said_aloud_and_reading_goes_on_at_the_earliest_message(
    kafka_server: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers = kafka_server.bootstrap_servers
    write(kafka_server, topic, *"abcdef")
    async with driving(
        producer_on(servers, topic, topic), lambda message: ACKED if message.offset == 0 else None
    ) as driver:
        await driver.settled(1)
    kafka_server.delete_records(topic, 0, before=4)
    driver = await read(kafka_server, topic, 2)
    assert driver.values == ["e", "f"]
    assert any("3 messages were deleted before they were read" in text for text in caplog.messages)


@pytest.mark.rule("13: the messages of a recreated topic have other keys")
async def test_a_recreated_topic_is_read_from_its_beginning_and_its_messages_have_other_keys(
    kafka_server: KafkaServer, topic: str
) -> None:
    write(kafka_server, topic, "a", "b")
    first = await read(kafka_server, topic, 2)
    kafka_server.delete_topic(topic)
    kafka_server.create_topic(topic)
    write(kafka_server, topic, "new a")
    second = await read(kafka_server, topic, 1)
    assert second.values == ["new a"]
    assert not set(first.keys) & set(second.keys)
    beginning, partition, offset = first.keys[1].split("/")
    name, _, topic_id = beginning.partition("@")
    assert (name, partition, offset) == (topic, "0", "1")
    assert len(base64.urlsafe_b64decode(topic_id + "==")) == 16


@pytest.mark.rule("a topic is deleted and created again")
async def test_a_topic_recreated_under_a_running_stream_ends_it_and_the_next_one_misses_nothing(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    write(kafka_server, topic, "a", "b")
    async with driving(producer_on(servers, topic, topic)) as first:
        await first.settled(2)
        kafka_server.delete_topic(topic)
        kafka_server.create_topic(topic)
        # Write more messages than the old topic had, so that the stream's next offset exists in the new topic.
        write(kafka_server, topic, *"uvwxyz")
        error = await first.until_failed()
    assert "deleted and created again" in str(error) or "no topic" in str(error)
    second = await read(kafka_server, topic, 6)
    assert second.values == list("uvwxyz")


@pytest.mark.rule("13: the messages of a recreated topic have other keys")
async def test_a_topic_recreated_between_two_looks_yields_nothing_under_the_id_of_the_deleted_one(
    kafka_server: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.kafka.producer._CHECK_TOPICS_EVERY_S", 3600.0)
    servers = kafka_server.bootstrap_servers
    write(kafka_server, topic, "a", "b")
    async with driving(producer_on(servers, topic, topic)) as first:
        await first.settled(2)
        kafka_server.delete_topic(topic)
        kafka_server.create_topic(topic)
        write(kafka_server, topic, *"uvwxyz")
        error = await first.until_failed()
    assert first.values == ["a", "b"]
    assert "deleted and created again" in str(error) or "no topic" in str(error)
    second = await read(kafka_server, topic, 6)
    assert second.values == list("uvwxyz")
    assert not set(first.keys) & set(second.keys)


async def test_where_brokers_know_no_topic_ids_the_timestamp_tells_topics_apart(
    kafka_server: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_old(*_: object) -> None:
        raise NotImplementedError("Support for Metadata v9 has not yet been added")

    monkeypatch.setattr(
        "producers.kafka.wire.metadata_request.DescribeTopicsRequest.prepare", too_old
    )
    servers = kafka_server.bootstrap_servers
    write(kafka_server, topic, "a", "b")
    first = await read(kafka_server, topic, 2)
    kafka_server.delete_topic(topic)
    kafka_server.create_topic(topic)
    write(kafka_server, topic, "new a", "new b")
    second = await read(kafka_server, topic, 2)
    assert first.keys[0] == f"{topic}@{first.seen[0].timestamp}/0/0"
    assert not set(first.keys) & set(second.keys)
    async with driving(producer_on(servers, "no-such-topic", "g")) as unknown:
        assert "no topic 'no-such-topic'" in str(await unknown.until_failed())


async def test_foreign_commits_are_honoured(kafka_server: KafkaServer, topic: str) -> None:
    write(kafka_server, topic, "a", "b", "c")
    servers, place = kafka_server.bootstrap_servers, TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=topic, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([place])
    await consumer.commit({place: (2, "written by hand")})
    await consumer.stop()
    driver = await read(kafka_server, topic, 1)
    assert driver.values == ["c"]


async def test_the_commit_carries_topic_and_failures_in_a_small_json_text(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers, place = kafka_server.bootstrap_servers, TopicPartition(topic, 0)
    write(kafka_server, topic, "bad")
    async with driving(
        producer_on(servers, topic, topic, max_deliveries=0), lambda _: FAILED
    ) as driver:
        await driver.settled(2)
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    commits = await admin.list_consumer_group_offsets(topic, partitions=[place])
    await admin.close()
    metadata = json.loads(commits[place].metadata)
    assert metadata["failures"] >= 2
    assert driver.keys[0] == f"{topic}@{metadata['topic']}/0/0"
    assert len(commits[place].metadata) < 100


async def wait_for_commit(
    server: KafkaServer, topic: str, offset: int, *, group: str | None = None
) -> None:
    with anyio.fail_after(20):
        while server.committed_offsets(group or topic, topic).get(0) != offset:  # noqa: ASYNC110 - the broker tells nobody of commits
            await anyio.sleep(0.05)
