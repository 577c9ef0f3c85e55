"""A client with which tests use a Kafka broker or cluster: topics, records, offsets, groups."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest

from tests.services.process import ServiceError, run_apart

TIMEOUT_S = 30.0
T = TypeVar("T")


class KafkaClient:
    """A synchronous client, for any thread. Each request runs in an event loop of its own.

    The broker does not create topics that a client merely mentions, so call `create_topic`.

    Args:
        replicas: How many copies a new topic has.
    """

    def __init__(self, bootstrap_servers: str, *, replicas: int) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._replicas = replicas

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        placed: Mapping[int, Sequence[int]] | None = None,
        **config: str,
    ) -> None:
        """Create a topic, and wait until the broker serves it.

        Args:
            placed: For each partition its nodes, the leader first; None: the cluster chooses the nodes.
            config: The topic's own settings, with `_` for `.`, such as `retention_ms="1000"`.
        """
        settings = {key.replace("_", "."): value for key, value in config.items()}
        if placed is None:
            topic = NewTopic(name, partitions, self._replicas, topic_configs=settings)
        else:
            topic = NewTopic(name, -1, -1, replica_assignments=placed, topic_configs=settings)

        async def ask(admin: AIOKafkaAdminClient) -> None:
            for _, code, message in (await admin.create_topics([topic])).topic_errors:
                _raise_for(code, f"topic {name} not created: {message}")

        self._admin(ask)
        self._await_partitions(name, len(placed) if placed else partitions)

    def topics(self) -> set[str]:
        """Return the names of all topics, without the broker's own ones."""
        names: Any = self._admin(lambda admin: admin.list_topics())
        return {name for name in names if not name.startswith("__")}

    def delete_topic(self, name: str) -> None:
        """Remove a topic. Its name can be used again at once, for a topic with another id."""

        async def ask(admin: AIOKafkaAdminClient) -> None:
            for _, code in (await admin.delete_topics([name])).topic_error_codes:
                _raise_for(code, f"topic {name} not deleted")

        self._admin(ask)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let the topic have `total` partitions, which must be more than it has."""
        self._admin(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))
        self._await_partitions(topic, total)

    def delete_records(self, topic: str, partition: int, *, before: int) -> None:
        """Remove the records below an offset, as retention would."""
        below = {TopicPartition(topic, partition): RecordsToDelete(before_offset=before)}
        self._admin(lambda admin: admin.delete_records(below))

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions, in order."""

        async def ask(admin: AIOKafkaAdminClient) -> list[int]:
            (described,) = await admin.describe_topics([topic])
            _raise_for(described["error_code"], f"topic {topic}")
            return sorted(partition["partition"] for partition in described["partitions"])

        return self._admin(ask)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the offset that the next record gets."""
        places = self._places(topic)
        return _by_partition(self._consumer(lambda consumer: consumer.end_offsets(places)))

    def start_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the offset of the oldest record that is left."""
        places = self._places(topic)
        return _by_partition(self._consumer(lambda consumer: consumer.beginning_offsets(places)))

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return, by partition, the offset that the group has committed. Partitions without a commit are left out."""
        asked = [(topic, self.partitions(topic))]

        # Send the request without aiokafka's own methods: aiokafka 0.14 ignores the answer's error code, so "still
        # loading" would look like "nothing committed".
        async def ask(admin: AIOKafkaAdminClient) -> dict[int, int]:
            coordinator = await admin.find_coordinator(group)
            answer = await admin._send_request(OffsetFetchRequest(group, asked), coordinator)
            _raise_for(answer.error_code, f"commits of {group}")
            ((_, places),) = answer.topics
            for partition, _, _, code in places:
                _raise_for(code, f"commit of {group} for {topic}[{partition}]")
            return {partition: offset for partition, offset, _, _ in places if offset >= 0}

        return self._admin(ask)

    def group_members(self, group: str) -> int:
        """How many consumers the group has now."""

        async def ask(admin: AIOKafkaAdminClient) -> int:
            (response,) = await admin.describe_consumer_groups([group])
            (described,) = response.to_object()["groups"]
            _raise_for(described["error_code"], f"group {group}")
            return len(described["members"])

        return self._admin(ask)

    def delete_group(self, group: str) -> None:
        """Delete a group without consumers, with its commits."""

        async def ask(admin: AIOKafkaAdminClient) -> None:
            coordinator = await admin.find_coordinator(group)
            answer = await admin._send_request(DeleteGroupsRequest([group]), coordinator)
            ((_, code),) = answer.results
            _raise_for(code, f"deletion of {group}")

        self._admin(ask)

    def produce(
        self,
        topic: str,
        values: Sequence[bytes | str],
        *,
        partition: int = 0,
        key: bytes | str | None = None,
    ) -> list[int]:
        """Write records in order, each once, and wait for the broker's acknowledgements; return the offsets."""

        async def write() -> list[int]:
            async with AIOKafkaProducer(**self._client(), enable_idempotence=True) as producer:
                sent = [
                    await producer.send(topic, _bytes(value), key=_bytes(key), partition=partition)
                    for value in values
                ]
                return [record.offset for record in await asyncio.gather(*sent)]

        return run_apart(write())

    def _await_partitions(self, topic: str, count: int) -> None:
        """Wait until the topic has `count` partitions, and each has a leader that answers."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if len(self.end_offsets(topic)) == count:
                    return
            except UnknownTopicOrPartitionError:
                pass  # not known yet
            if time.monotonic() > deadline:
                raise ServiceError(f"topic {topic} has not got {count} partitions in time")
            time.sleep(0.02)

    def _places(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in self.partitions(topic)]

    def _admin(self, request: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        """Return the answer of the admin interface. Requests are repeated while a new broker refuses."""

        async def attempt() -> T:
            admin = AIOKafkaAdminClient(**self._client())
            try:
                await admin.start()
                return await request(admin)
            finally:
                await admin.close()

        async def attempts() -> T:
            deadline = time.monotonic() + TIMEOUT_S
            while True:
                try:
                    return await attempt()
                except UnknownTopicOrPartitionError:
                    raise
                except KafkaError as error:
                    if not error.retriable or time.monotonic() > deadline:
                        raise
                await asyncio.sleep(0.05)

        # Do not use confluent-kafka's admin client. If Python collects such a client in a thread of librdkafka, the
        # process aborts (confluent-kafka-python#2129).
        return run_apart(attempts())

    def _consumer(self, request: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        """Return the answer to a consumer without a group. The client repeats requests that can be repeated."""

        async def ask() -> T:
            async with AIOKafkaConsumer(**self._client()) as consumer:
                return await request(consumer)

        return run_apart(ask())

    def _client(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "request_timeout_ms": int(TIMEOUT_S * 1000),
            "retry_backoff_ms": 50,
        }


def _raise_for(code: int, what: str) -> None:
    if code:
        raise for_code(code)(what)


def _by_partition(offsets: dict[TopicPartition, int]) -> dict[int, int]:
    return {place.partition: offset for place, offset in offsets.items()}


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
