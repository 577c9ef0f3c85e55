"""Apache Kafka, and other brokers that speak its protocol.

- `producer`: the producer of a shared stream.
- `assignment` and `in_flight`: the assigned partitions, and the messages in flight of each partition.
- `settle`, with `verdict` and `dead_letter`: commits positions, redelivers messages and dead-letters them.
- `connection`, `positions` and `lane_reader`: connecting, finding positions, reading a partition again.
- `wire`: everything beyond aiokafka's public methods.
- `ranges`: the look-up of new offsets for watchers that get ranges instead of messages.
"""

from producers.kafka.connection.checking import check_topics
from producers.kafka.message import KafkaMessage
from producers.kafka.producer import KafkaSharedStreamProducer
from producers.kafka.ranges.log_bounds import read_logs, servers_of

__all__ = ["KafkaMessage", "KafkaSharedStreamProducer", "check_topics", "read_logs", "servers_of"]
