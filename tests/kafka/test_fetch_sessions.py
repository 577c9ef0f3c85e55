"""Fetches that name only what has changed, on a real Apache Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import anyio
import pytest

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer
from producers.kafka.fetch_request import SessionFetch, WantedTopics
from producers.kafka.fetch_session import FetchSession
from tests.kafka.driving import ACKED, FAILED, Driver, driving
from tests.services.kafka import KafkaServer
from triggerer.abc import AdvanceOutcome

PARTITIONS = 8


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"s-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name, PARTITIONS)
    return name


class Watched:
    """The fetches of the sessions, and the sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[SessionFetch] = []
        self.sessions: set[FetchSession] = set()
        begin = FetchSession.next

        def next_(session: FetchSession, wanted: WantedTopics) -> SessionFetch:
            self.sessions.add(session)
            self.sent.append(begin(session, wanted))
            return self.sent[-1]

        monkeypatch.setattr(FetchSession, "next", next_)

    @property
    def named(self) -> list[int]:
        """How many partitions each fetch has named."""
        return [sum(map(len, fetch.topics.values())) for fetch in self.sent]

    @property
    def firsts(self) -> int:
        return sum(fetch.epoch == 0 for fetch in self.sent)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def until(driver: Driver, condition: Callable[[], bool]) -> None:
    """A fetch tells the driver nothing."""
    with anyio.fail_after(30):
        while not condition():
            assert driver.error is None
            await anyio.sleep(0.02)


async def one_by_one(driver: Driver, kafka: KafkaServer, topic: str, values: list[str]) -> None:
    for number, value in enumerate(values):
        await anyio.to_thread.run_sync(
            lambda value=value, number=number: kafka.produce(
                topic, [value], partition=number % PARTITIONS
            )
        )
        await driver.until(lambda value=value: value in driver.values)  # type: ignore[misc]


async def test_a_fetch_names_only_the_partitions_that_have_moved(
    kafka_server: KafkaServer,
    topic: str,
    producer: KafkaSharedStreamProducer,
    watched: Watched,
) -> None:
    async with driving(producer) as driver:
        await until(driver, lambda: watched.firsts == 1 and len(watched.sent) > 1)
        values = [f"m{number}" for number in range(20)]
        await one_by_one(driver, kafka_server, topic, values)
        await driver.settled(20)
    assert driver.values == values
    assert watched.named[0] == PARTITIONS
    assert watched.firsts == 1
    assert max(watched.named[1:]) == 1


async def test_all_are_named_again_to_a_broker_that_has_forgotten(
    kafka_server: KafkaServer,
    topic: str,
    producer: KafkaSharedStreamProducer,
    watched: Watched,
) -> None:
    async with driving(producer) as driver:
        await one_by_one(driver, kafka_server, topic, [*"abc"])
        (session,) = watched.sessions
        for number, (name, value) in enumerate([("_id", 12_345), ("_epoch", 77)]):
            setattr(session, name, value)
            await one_by_one(driver, kafka_server, topic, [f"{number}{at}" for at in range(9)])
        await driver.settled(21)
        # One to begin with, and one after each: no session is asked for each time.
        assert watched.firsts == 3
    assert len(driver.values) == len({*driver.values}) == 21


async def test_a_partition_that_pauses_is_forgotten_and_goes_on(
    kafka_server: KafkaServer,
    topic: str,
    producer: KafkaSharedStreamProducer,
    watched: Watched,
) -> None:
    async with driving(producer) as driver:
        await one_by_one(driver, kafka_server, topic, [*"abc"])
        lane = producer.get_advance_lane(driver.seen[-1])
        await producer.pause_lane(lane)
        await until(driver, lambda: any(fetch.forgotten for fetch in watched.sent))
        await anyio.to_thread.run_sync(lambda: kafka_server.produce(topic, ["later"], partition=2))
        await one_by_one(driver, kafka_server, topic, [*"de"])
        assert "later" not in driver.values
        await producer.resume_lane(lane)
        await driver.settled(6)
    assert watched.firsts == 1
    assert driver.values == [*"abcde", "later"]


async def test_what_failed_comes_again_from_the_offset_before(
    kafka_server: KafkaServer,
    topic: str,
    producer: KafkaSharedStreamProducer,
    watched: Watched,
) -> None:
    failed: list[str] = []

    def fail_once(message: KafkaMessage) -> AdvanceOutcome:
        value = (message.value or b"").decode()
        if value in failed or value not in "bd":
            return ACKED
        failed.append(value)
        return FAILED

    async with driving(producer, fail_once) as driver:
        await one_by_one(driver, kafka_server, topic, [*"abcde"])
        await driver.until(lambda: len(driver.advanced) >= 7)
    assert watched.firsts == 1
    assert sorted(driver.values) == [*"abbcdde"]
