"""KafkaEventTrigger in the real runtime, on a real broker, and on librdkafka's mock broker, which the demo uses."""

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import pytest
from confluent_kafka import Producer

from tests.brokers.kafka.driving import driving, producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer import abc
from triggerer.abc import TriggerEvent
from triggerer.testing import StreamHarness
from watchers.kafka import KafkaEventTrigger


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"w-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name, 2)
    return name


@pytest.fixture
def connected(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(connection: str) -> Mapping[str, Any]:
        assert connection == "kafka"
        return {
            "bootstrap_servers": kafka_server.bootstrap_servers,
            "redelivery_delay_s": 0.05,
            "redelivery_delay_max_s": 0.1,
        }

    monkeypatch.setattr(abc, "_resolve_connection", resolve)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - the broker tells nobody
            await anyio.sleep(0.02)


@pytest.mark.usefixtures("connected")
async def test_siblings_share_one_consumer_and_each_gets_what_it_asked_for(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, ['{"n": 1}', '{"n": 2}'], partition=0, key="k")
    kafka_server.produce(topic, ['{"n": 3}', "not json", '{"n": 4}'], partition=1)
    async with StreamHarness() as streams:
        low = await streams.add(KafkaEventTrigger(topic, match={"n": {"le": 2}}))
        high = await streams.add(KafkaEventTrigger(topic, match={"n": {"gt": 2}}, extra={"n": "n"}))
        await until(lambda: kafka_server.committed_offsets(low_group(topic), topic) == {0: 2, 1: 3})
        assert len(streams.groups) == 1
        assert kafka_server.group_members(low_group(topic)) == 1
        assert sorted(event.payload["n"] for event in high.events) == [3, 4]
        assert [event.payload["value"]["n"] for event in low.events] == [1, 2]
        assert {key: low.events[0].payload[key] for key in ("key", "topic", "partition", "offset")} == {
            "key": "k", "topic": topic, "partition": 0, "offset": 0,
        }  # fmt: skip
        assert (low.error, high.error) == (None, None)


def low_group(topic: str) -> str:
    return KafkaEventTrigger(topic).group


@pytest.mark.rule("12: the broker is advanced only after the events are committed")
@pytest.mark.usefixtures("connected")
async def test_nothing_is_committed_before_its_events_are_durable(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, ['{"n": 1}', '{"n": 2}'], partition=0)
    group = low_group(topic)
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(KafkaEventTrigger(topic))
        await until(lambda: len(one.unpersisted) == 2)
        await anyio.sleep(0.2)  # a commit that comes too early would come in this time
        assert kafka_server.committed_offsets(group, topic)[0] == 0
        await streams.persist(1)
        await until(lambda: kafka_server.committed_offsets(group, topic)[0] == 1)
        await streams.persist()
        await until(lambda: kafka_server.committed_offsets(group, topic)[0] == 2)


class Shaky(KafkaEventTrigger):
    """Raises at each message that contains a true `raise`."""

    async def filter_shared_stream(self, shared_stream: Any) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            if message.json().get("raise"):
                raise ValueError("as the message asked")
            yield TriggerEvent(message.json())


@pytest.mark.rule(
    "11: a sibling's success never commits a message that a watcher in back-off has not seen"
)
@pytest.mark.usefixtures("connected")
async def test_a_filter_that_raises_holds_the_position_while_its_sibling_goes_on(
    kafka_server: KafkaServer, topic: str
) -> None:
    kafka_server.produce(topic, ['{"n": 1}', '{"raise": true}', '{"n": 3}'], partition=0)
    async with StreamHarness() as streams:
        shaky = await streams.add(Shaky(topic))
        steady = await streams.add(KafkaEventTrigger(topic, decode=None))
        await until(lambda: shaky.error is not None)
        await until(lambda: len(steady.events) + len(steady.unpersisted) >= 3)
        assert steady.error is None
        assert kafka_server.committed_offsets(low_group(topic), topic)[0] <= 1


@pytest.mark.usefixtures("connected")
async def test_an_unknown_topic_is_shown_as_the_watchers_error(kafka_server: KafkaServer) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(KafkaEventTrigger("no-such-topic"))
        await until(lambda: one.error is not None)
        error: BaseException | None = one.error
        texts = []
        while error is not None:
            texts.append(str(error))
            error = error.__cause__
        assert any("no topic 'no-such-topic'" in text for text in texts)


@pytest.fixture
def mock_broker() -> Any:
    """A producer of librdkafka, and the address of its mock broker. The broker lives as long as the producer."""
    producer = Producer(
        {"bootstrap.servers": "unused:1", "test.mock.num.brokers": 1, "log_level": 0}
    )
    (broker,) = producer.list_topics(timeout=5).brokers.values()
    return producer, f"{broker.host}:{broker.port}"


async def test_librdkafkas_mock_broker_is_read_committed_and_resumed(
    mock_broker: tuple[Producer, str],
) -> None:
    producer, servers = mock_broker
    producer.list_topics("flights", timeout=5)  # the request creates the topic, with 4 partitions
    for number in range(1000):
        producer.produce("flights", str(number), partition=number % 4)
    assert producer.flush(10) == 0
    async with driving(producer_on(servers, "flights", "g")) as one:
        await one.settled(1000)
    assert len(set(one.keys)) == 1000
    for number in range(1000, 1010):
        producer.produce("flights", str(number), partition=number % 4)
    assert producer.flush(10) == 0
    async with driving(producer_on(servers, "flights", "g")) as two:
        await two.settled(10)
    assert sorted(map(int, two.values)) == list(range(1000, 1010))
    assert {key.split("/")[0] for key in one.keys} == {key.split("/")[0] for key in two.keys}
