"""Makes ranges of Kafka offsets for Spark from the events of a `KafkaRangeTrigger`, and checks them at the brokers."""

from triggerer.offset_ranges.merging import kafka_ranges
from triggerer.offset_ranges.ranges import KafkaRanges

__all__ = ["KafkaRanges", "kafka_ranges"]
