"""If two consumers have one `group_instance_id`, the older consumer ends with an error and does not rejoin."""

import uuid

import anyio
import pytest

from producers.kafka import KafkaMessage
from tests.brokers.kafka.driving import ACKED, driving, everything, producer_on
from tests.services.brokers.kafka import KafkaServer
from triggerer.abc import AdvanceOutcome
from triggerer.errors import BrokerUnavailable


@pytest.mark.rule("two static Kafka members of one name fence each other without end")
async def test_static_members_of_one_name_do_not_throw_one_another_out_for_ever(
    kafka_server: KafkaServer,
) -> None:
    topic = f"static-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, ["a", "b", "c"])
    servers = kafka_server.bootstrap_servers

    def nothing(_: KafkaMessage) -> AdvanceOutcome | None:
        return None

    first = producer_on(servers, topic, topic, group_instance_id="one")
    second = producer_on(servers, topic, topic, group_instance_id="one")
    async with driving(first, nothing) as old:
        await old.count(3)
        async with driving(second, everything) as new:
            await new.settled(3)
            assert kafka_server.committed_offsets(topic, topic) == {0: 3}
            error = await old.until_failed()
            assert isinstance(error, BrokerUnavailable)
            assert "has taken over group_instance_id 'one'" in str(error)
            # Ten heartbeats later, `new` is still the same member and reads on.
            await anyio.sleep(3)
            kafka_server.produce(topic, ["d"])
            await new.settled(4)
            assert new.seen[3].lane.membership == new.seen[0].lane.membership
            assert new.values == ["a", "b", "c", "d"]
            # `old` does not know that it lost its partitions, but its commits have no effect.
            old.resolve = lambda _: ACKED
            await old.advance_waiting()
            assert kafka_server.committed_offsets(topic, topic) == {0: 4}


async def test_a_static_member_that_starts_again_takes_over_from_itself(
    kafka_server: KafkaServer,
) -> None:
    topic = f"static-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic)
    servers = kafka_server.bootstrap_servers
    for number in range(3):
        kafka_server.produce(topic, [str(number)])
        producer = producer_on(servers, topic, topic, group_instance_id="one")
        # The session of the previous producer has not expired. Both producers have the same `group_instance_id`, so the
        # broker treats this producer as the same member.
        async with driving(producer) as driver:
            await driver.settled(1)
            assert driver.values == [str(number)]
            assert driver.error is None
