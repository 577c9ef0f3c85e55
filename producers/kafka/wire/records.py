"""Reads records from aiokafka's consumer."""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as sdk

from producers.kafka.errors import guarded
from producers.kafka.message import Record

_LOOK_AROUND_MS = 1000
"""`get_records` waits at most this long, so that the caller can notice other things, such as errors of other tasks."""


class OutOfRange(Exception):
    """The broker has no messages at these positions. `guarded` does not translate this error."""

    def __init__(self, offsets: dict[TopicPartition, int]) -> None:
        super().__init__(offsets)
        self.offsets = offsets


async def get_records(
    consumer: AIOKafkaConsumer, at_most: int, what: str
) -> dict[TopicPartition, list[Record]]:
    """Return the next records by partition; empty if no record came for a while.

    Raises:
        OutOfRange: The positions of some partitions are not in the brokers' logs.
        BrokerUnavailable, BrokerRefused: See `guarded`.
    """
    return await guarded(_getmany(consumer, at_most), what)


async def _getmany(consumer: AIOKafkaConsumer, at_most: int) -> dict[TopicPartition, list[Record]]:
    try:
        batches: dict[TopicPartition, list[Record]] = await consumer.getmany(
            timeout_ms=_LOOK_AROUND_MS, max_records=at_most
        )
    except sdk.NoOffsetForPartitionError:
        # The position of a partition is being found at this moment, so there are no records yet.
        return {}
    except sdk.OffsetOutOfRangeError as error:
        raise OutOfRange(error.args[0]) from error
    return batches
