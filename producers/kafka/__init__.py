"""Apache Kafka, and other brokers that speak its protocol.

`producer` has the shared stream's producer. `in_flight` has the state of one assigned partition, and `settle` commits,
redelivers and dead-letters. `connection` connects, `positions` finds and commits positions, and `wire` has all that
goes beyond aiokafka's public methods. `ranges` has what watchers of offset ranges need.
"""

from producers.kafka.connection.checking import check_topics
from producers.kafka.message import KafkaMessage
from producers.kafka.producer import KafkaSharedStreamProducer
from producers.kafka.ranges.log_bounds import read_logs, servers_of

__all__ = ["KafkaMessage", "KafkaSharedStreamProducer", "check_topics", "read_logs", "servers_of"]
