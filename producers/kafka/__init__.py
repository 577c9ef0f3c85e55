"""Apache Kafka, and whatever speaks its protocol.

`producer` has the shared stream's producer. The other modules are its parts: the settings, the lane (one assigned
partition), the committed position, the commits, the dead letters, requests to the cluster, and the translation of the
SDK's errors.
"""

from producers.kafka.connection.checking import check_topics
from producers.kafka.message import KafkaMessage
from producers.kafka.producer import KafkaSharedStreamProducer

__all__ = ["KafkaMessage", "KafkaSharedStreamProducer", "check_topics"]
