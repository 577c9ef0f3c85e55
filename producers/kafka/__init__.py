"""Apache Kafka, and whatever speaks its protocol.

`producer` is the shared stream's producer; beside it stand its settings, the lane (one assigned partition) with its
decisions, the committed position, the commits, the dead letters, what is asked of the cluster, and the translation
of the SDK's errors.
"""

from producers.kafka.checking import check_topics
from producers.kafka.message import KafkaMessage
from producers.kafka.producer import KafkaSharedStreamProducer

__all__ = ["KafkaMessage", "KafkaSharedStreamProducer", "check_topics"]
