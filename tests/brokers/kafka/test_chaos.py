"""Members come and go, messages fail, and a broker is killed. Only accepted messages are committed."""

import random
import uuid
from typing import Any

import anyio
import pytest

from producers.kafka import KafkaMessage
from tests.brokers.kafka.driving import ACKED, FAILED, driving, producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer.abc import AdvanceOutcome

PARTITIONS = 6


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(1, 8), *(pytest.param(seed, 30, marks=pytest.mark.soak) for seed in range(2, 6))],
)
async def test_the_position_never_passes_what_nobody_accepted(
    kafka_server: KafkaServer, seed: int, seconds: int
) -> None:
    chance = random.Random(seed)
    topic = f"c-{uuid.uuid4().hex[:10]}"
    kafka_server.create_topic(topic, PARTITIONS)
    servers = kafka_server.bootstrap_servers
    accepted: set[tuple[int, int]] = set()
    busy = True

    def resolve(message: KafkaMessage) -> AdvanceOutcome | None:
        if busy and chance.random() < 0.02:
            return FAILED
        accepted.add((message.partition, message.offset))
        return ACKED

    there = anyio.Lock()

    async def write() -> None:
        while busy:
            await write_once()

    async def write_once() -> None:
        async with there:
            values = [b"x"] * chance.randint(1, 200)
            partition = chance.randrange(PARTITIONS)
            await anyio.to_thread.run_sync(
                lambda values=values, partition=partition: kafka_server.produce(
                    topic, values, partition=partition
                )
            )

    async def member() -> None:
        quick: dict[str, Any] = {"max_deliveries": 0, "redelivery_delay_max_s": 0.1}
        while busy:
            async with driving(producer_on(servers, topic, topic, **quick), resolve) as driver:
                with anyio.move_on_after(chance.uniform(1, 4)):
                    # If the stream fails, this member ends. The loop then starts another one, as the runtime would.
                    await driver.until_failed()

    async with anyio.create_task_group() as tg:
        tg.start_soon(write)
        for _ in range(3):
            tg.start_soon(member)
        for _ in range(max(1, seconds // 15)):
            await anyio.sleep(seconds / 2)
            if seconds > 10:
                async with there:
                    await anyio.to_thread.run_sync(kafka_server.kill)
                    await anyio.to_thread.run_sync(kafka_server.start)
        busy = False
    passed = {
        (partition, offset)
        for partition, end in kafka_server.committed_offsets(topic, topic).items()
        for offset in range(end)
    }
    assert passed <= accepted
    assert len(passed) > 100
    async with driving(producer_on(servers, topic, topic), resolve) as last:
        with anyio.fail_after(60):
            while kafka_server.committed_offsets(topic, topic) != kafka_server.end_offsets(topic):  # noqa: ASYNC110
                await anyio.sleep(0.1)
    assert last.error is None
    ends = kafka_server.end_offsets(topic)
    assert len(accepted) == sum(ends.values())
