"""What is taken from aiokafka's fetcher."""

from aiokafka import ConsumerRecord

from producers.kafka import KafkaSharedStreamProducer
from tests.kafka.driving import driving, everything


async def test_no_record_is_copied_by_the_client(
    producer: KafkaSharedStreamProducer, topic: str
) -> None:
    async with driving(producer, everything) as driver:
        await driver.until(lambda: len(driver.seen) == 10)
    assert not [one for one in driver.seen if isinstance(one.record, ConsumerRecord)]
    assert {(message.topic, message.partition) for message in driver.seen} == {(topic, 0)}
    assert [message.offset for message in driver.seen] == list(range(10))
    assert driver.values == [*"abcdefghij"]
