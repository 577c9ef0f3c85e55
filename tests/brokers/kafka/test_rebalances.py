"""Partitions that come and go while work is in flight."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping

import anyio
import pytest
from aiokafka import TopicPartition

from producers.kafka import KafkaMessage
from producers.kafka.in_flight import LaneInFlight
from tests.brokers.kafka.driving import ACKED, Driver, driving, producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer.abc import AdvanceItem, AdvanceOutcome

PARTITIONS = 4


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"r-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(name, PARTITIONS)
    return name


def fill(server: KafkaServer, topic: str, per_partition: int, mark: str = "") -> None:
    for partition in range(PARTITIONS):
        values = [json.dumps([mark, partition, number]) for number in range(per_partition)]
        server.produce(topic, values, partition=partition)


def all_committed(server: KafkaServer, topic: str) -> bool:
    return server.committed_offsets(topic, topic) == server.end_offsets(topic)


def lanes(driver: Driver) -> Mapping[TopicPartition, LaneInFlight]:
    """The partitions that a member reads now."""
    return driver.producer.lanes


async def until(condition: Callable[[], bool]) -> None:
    """Poll the condition, because the broker does not announce changes of a group."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.05)


@pytest.mark.rule("a rebalance while a batch is half full loses the messages in flight")
async def test_members_come_and_go_with_work_in_flight_and_everything_is_delivered(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    written = 0
    writing = True
    all_written = anyio.Event()

    async def write() -> None:
        nonlocal written
        while writing:
            mark = str(written)
            await anyio.to_thread.run_sync(fill, kafka_server, topic, 25, mark)
            written += 25
        all_written.set()

    async with driving(producer_on(servers, topic, topic)) as one, anyio.create_task_group() as tg:
        tg.start_soon(write)
        await one.settled(100)
        async with driving(producer_on(servers, topic, topic)) as two:
            await two.settled(200)
            await until(lambda: len(lanes(one)) == len(lanes(two)) == PARTITIONS // 2)
            both = len(one.seen) + len(two.seen)
            await until(lambda: len(one.seen) + len(two.seen) > both + 200)
        await until(lambda: len(lanes(one)) == PARTITIONS)
        writing = False
        await all_written.wait()
        await until(lambda: all_committed(kafka_server, topic))
    keys = Counter(one.keys) + Counter(two.keys)
    assert set(kafka_server.end_offsets(topic).values()) == {written}
    assert len(keys) == PARTITIONS * written
    # A member may advance its messages in flight before it gives up partitions. So only few messages come twice.
    assert keys.total() - len(keys) < PARTITIONS * 100


async def test_what_is_in_flight_may_be_advanced_while_the_partition_goes(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    fill(kafka_server, topic, 10)
    may_finish = False

    def resolve(_: KafkaMessage) -> AdvanceOutcome | None:
        return ACKED if may_finish else None

    async with driving(producer_on(servers, topic, topic), resolve) as one:
        await one.count(PARTITIONS * 10)
        async with driving(producer_on(servers, topic, topic)) as two:
            await until(lambda: all(m.lane.draining for m in one.seen))
            may_finish = True
            await one.advance_waiting()
            await until(lambda: all_committed(kafka_server, topic))
            await until(lambda: len(kafka_server.committed_offsets(topic, topic)) == PARTITIONS)
            await until(lambda: len(lanes(two)) > 0)
            assert two.seen == []
    assert len(one.seen) == PARTITIONS * 10


async def test_an_advance_that_comes_after_the_partition_has_gone_changes_nothing(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    fill(kafka_server, topic, 10)
    quick = {"revoke_timeout_s": 0.1}
    async with driving(producer_on(servers, topic, topic, **quick), lambda _: None) as one:
        await one.count(PARTITIONS * 10)
        old = list(one.seen)
        async with driving(producer_on(servers, topic, topic), lambda _: None) as two:
            await two.count(PARTITIONS * 10 // 2)
            for partition in range(PARTITIONS):
                await one.producer.advance(
                    [AdvanceItem(m, ACKED) for m in old if m.partition == partition]
                )
            assert set(kafka_server.committed_offsets(topic, topic).values()) == {0}
    async with driving(producer_on(servers, topic, topic)) as three:
        await three.settled(PARTITIONS * 10)


@pytest.mark.rule("a commit after the partition was lost is taken for a success")
async def test_a_commit_under_a_membership_that_is_over_is_no_success(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    fill(kafka_server, topic, 10)
    async with driving(producer_on(servers, topic, topic), lambda _: None) as one:
        await one.count(PARTITIONS * 10)
        lane = one.seen[0].lane
        coordinator = one.producer._consumer._coordinator  # type: ignore[union-attr]
        # The consumer leaves the group without the producer's knowledge, as if its session had expired. The producer
        # must not commit now. aiokafka would commit with generation -1, which a group without members accepts.
        await coordinator._maybe_leave_group()
        mine = [AdvanceItem(m, ACKED) for m in one.seen if m.lane is lane]
        await one.producer.advance(mine)
        assert lane.closed
        assert kafka_server.committed_offsets(topic, topic)[lane.partition.partition] == 0
        # The member joins again, and receives the uncommitted messages again.
        await one.count(PARTITIONS * 20)


async def test_a_paused_stream_delivers_nothing_and_stays_a_member(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    async with driving(producer_on(servers, topic, topic)) as driver:
        await until(lambda: len(lanes(driver)) > 0)
        await driver.producer.pause()
        fill(kafka_server, topic, 5)
        await anyio.sleep(1.0)  # an unpaused stream delivers them much sooner
        assert driver.seen == []
        assert kafka_server.group_members(topic) == 1
        await driver.producer.resume()
        await driver.settled(PARTITIONS * 5)


async def test_a_member_without_partitions_waits_for_its_turn(
    kafka_server: KafkaServer, topic: str
) -> None:
    servers = kafka_server.bootstrap_servers
    single = f"{topic}-single"
    kafka_server.create_topic(single, 1)
    async with driving(producer_on(servers, single, single)) as one:
        await until(lambda: len(lanes(one)) > 0)
        async with driving(producer_on(servers, single, single)) as two:
            await until(lambda: kafka_server.group_members(single) == 2)
            kafka_server.produce(single, ["a"])
            await until(lambda: len(one.seen) + len(two.seen) == 1)
        kafka_server.produce(single, ["b"])
        await until(lambda: _values(one, two) == {"a", "b"})


def _values(*drivers: Driver) -> set[str]:
    return {value for driver in drivers for value in driver.values}
