"""A Kafka-protocol broker inside this process: the mock cluster that librdkafka brings along.

It speaks the real protocol on a loopback port, with groups, fetches and commits, and knows three
things that shape the demo: a topic is made when it is first asked for, always with 4 partitions; a
group's first member waits 3 s for others; and a partition keeps only its newest 5 MB, silently.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from triggerer.errors import BrokerUnavailable


class MockBroker:
    """The broker and the one producer that writes to it; both end with `close`."""

    def __init__(self) -> None:
        self._failures: list[str] = []
        self.delivered = 0
        """Messages that the broker has confirmed."""
        self._producer = Producer(
            {
                "bootstrap.servers": "",
                "test.mock.num.brokers": 1,
                # Fewer bytes to keep, so that the mock's 5 MB hold about 120,000 of our messages.
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
        """Make the topic and return how many partitions it has."""
        return len(self._producer.list_topics(name, timeout=10).topics[name].partitions)

    def publish(self, topic: str, key: str, value: bytes) -> None:
        """Hand a message over; `delivered` counts it once the broker has it."""
        self._producer.produce(topic, value, key, on_delivery=self._delivered)

    def serve(self, wait_s: float = 0.0) -> None:
        """Let confirmations in. Blocks for up to `wait_s`.

        Raises:
            BrokerUnavailable: A message was not taken.
        """
        self._producer.poll(wait_s)
        if self._failures:
            raise BrokerUnavailable(f"the demo's broker refused a message: {self._failures[0]}")

    def flush(self, wait_s: float) -> None:
        """Send what still lingers, and wait for the confirmations."""
        self._producer.flush(wait_s)
        self.serve()

    def close(self) -> None:
        """Stop the broker: it lives in the producer."""
        self._producer.purge()
        del self._producer

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._failures.append(f"{message.topic()}: {error}")
