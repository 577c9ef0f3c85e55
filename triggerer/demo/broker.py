"""A Kafka-protocol broker inside this process: librdkafka's mock cluster.

The mock cluster speaks the real protocol on a loopback port. It differs from a real broker:

- The first request for a topic creates the topic, with 4 partitions.
- A new consumer group waits 3 s for further members.
- A partition silently drops all but its newest 5 MB.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from triggerer.errors import BrokerUnavailable


class MockBroker:
    """The broker, and the one producer that writes to it. `close` ends both."""

    def __init__(self) -> None:
        self._failures: list[str] = []
        self.delivered = 0
        """Messages that the broker has confirmed."""
        self._producer = Producer(
            {
                "bootstrap.servers": "",
                "test.mock.num.brokers": 1,
                # Compressed, about 120,000 of our messages fit into the mock's 5 MB.
                "compression.type": "gzip",
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 3,
            }
        )
        try:
            brokers = self._producer.list_topics(timeout=10).brokers.values()
        except KafkaException as error:
            raise BrokerUnavailable(f"the demo's broker did not start: {error}") from error
        self.bootstrap_servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def create_topic(self, name: str) -> int:
        """Create the topic and return its number of partitions."""
        return len(self._producer.list_topics(name, timeout=10).topics[name].partitions)

    def publish(self, topic: str, key: str, value: bytes) -> None:
        """Send a message without waiting. `delivered` counts it once the broker has confirmed it."""
        self._producer.produce(topic, value, key, on_delivery=self._delivered)

    def serve(self, wait_s: float = 0.0) -> None:
        """Process the broker's confirmations. Blocks for up to `wait_s`.

        Raises:
            BrokerUnavailable: The broker refused a message.
        """
        self._producer.poll(wait_s)
        if self._failures:
            raise BrokerUnavailable(f"the demo's broker refused a message: {self._failures[0]}")

    def flush(self, wait_s: float) -> None:
        """Send the buffered messages, and wait up to `wait_s` for their confirmations.

        Raises:
            BrokerUnavailable: The broker refused a message.
        """
        self._producer.flush(wait_s)
        self.serve()

    def close(self) -> None:
        """Stop the broker, which is part of the producer."""
        self._producer.purge()
        del self._producer

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._failures.append(f"{message.topic()}: {error}")
