"""Writes messages to a dead-letter topic: rejected messages, and messages that failed too often."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import anyio
from aiokafka import AIOKafkaProducer

from producers.kafka.errors import guarded
from producers.kafka.message import KafkaMessage
from producers.kafka.wire.internals import has_failed_for_good
from triggerer.errors import BrokerError, BrokerRefused
from triggerer.pluginkit.delivery import RecentRefusals

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings
    from producers.kafka.wire.cluster import Cluster

logger = logging.getLogger(__name__)

HEADER_PREFIX = "triggerer.dead-letter."
_WRITE_TIMEOUT_S = 15.0
_CLOSE_TIMEOUT_S = 5.0
_LOOKUP_TIMEOUT_S = 5.0
_NO_LIMIT = 2**31 - 1


class DeadLetters:
    """Writes to the dead-letter topic. Connects only for the first dead letter, because most streams never have one."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._settings = settings
        self._group = group
        self._producer: AIOKafkaProducer | None = None
        self._starting = anyio.Lock()
        self._cluster: Cluster | None = None
        self._missing = frozenset[str]()
        self._present = frozenset[str]()
        self._refused = RecentRefusals()

    def accepts(self, topic: str) -> bool:
        """Whether the topic has a dead-letter topic (see `has_topic_for`) that has not refused a message recently."""
        return self.has_topic_for(topic) and not self._refused.has(
            self._settings.dead_letter_topic_of(topic)
        )

    def has_topic_for(self, topic: str) -> bool:
        """Whether the topic's dead-letter topic exists. True until the cluster says that the topic is missing."""
        return self._settings.dead_letter_topic_of(topic) not in self._missing

    async def check_topics(self, topics: Collection[str], cluster: Cluster) -> None:
        """Look up which dead-letter topics are missing. After a failed look-up, all of them count as present."""
        self._cluster = cluster
        await self.recheck_topics(topics)

    async def recheck_topics(self, topics: Collection[str]) -> None:
        """Look up the dead-letter topics that were missing, and the dead-letter topics of newly found topics."""
        names = {self._settings.dead_letter_topic_of(topic) for topic in topics} - self._present
        if names:
            await self._find_missing(names)

    async def _find_missing(self, names: Collection[str]) -> None:
        assert self._cluster is not None
        try:
            with anyio.fail_after(_LOOKUP_TIMEOUT_S):
                missing = await self._cluster.find_missing(names)
        except (BrokerError, TimeoutError) as error:
            logger.info("the dead-letter topics could not be looked up: %s", error)
            return
        for name in sorted(missing - self._missing):
            logger.info("there is no topic %s for dead letters, and the brokers create none", name)
        self._missing = self._missing.difference(names) | missing
        self._present = self._present.union(names) - missing

    async def write(self, message: KafkaMessage, evidence: Mapping[str, object]) -> None:
        """Write the message with its key, value, timestamp and headers, and return once all in-sync replicas have it.

        - The headers `triggerer.dead-letter.*` contain the message's origin and the entries of `evidence`, which has at
          least a `reason`.
        - A message with neither key nor value gets an empty value and the header `null-value`.
        - After a crash, a message can be written twice. Topic, partition and offset in the headers show the repeat.

        Raises:
            BrokerError: The message could not be written; nothing may be committed past it.
        """
        topic = self._settings.dead_letter_topic_of(message.topic)
        what = f"dead letter of {message!r} to topic {topic!r}"
        await self._check(topic, what)
        try:
            with anyio.fail_after(_WRITE_TIMEOUT_S):
                producer = await self._open(what)
                await guarded(
                    producer.send_and_wait(
                        topic,
                        value=b"" if _is_null(message) else message.value,
                        key=message.key,
                        timestamp_ms=message.timestamp if message.timestamp >= 0 else None,
                        headers=[*message.headers, *self._headers(message, evidence)],
                    ),
                    what,
                )
        except TimeoutError as error:
            self._refused.record(topic)
            raise BrokerRefused(
                f"{what}: not written within {_WRITE_TIMEOUT_S:.0f} s",
                hint=f"does the topic {topic!r} exist, and may this user write to it?",
            ) from error
        except BrokerError as error:
            if isinstance(error, BrokerRefused):
                self._refused.record(topic)
            if error.hint is None:
                error.hint = f"does the topic {topic!r} exist, and may this user write to it?"
            raise
        logger.error(
            "message set aside: %r is now in topic %s: %s", message, topic, evidence["reason"]
        )

    async def _check(self, topic: str, what: str) -> None:
        """Raise `BrokerRefused` if the topic is known to be missing. Otherwise a write would wait for the topic."""
        if topic in self._missing:
            await self._find_missing((topic,))
        if topic in self._missing:
            raise BrokerRefused(
                f"{what}: there is no such topic, and the brokers create none",
                hint=f"create it: kafka-topics.sh --create --topic {topic} --partitions 8 …",
            )

    def _headers(
        self, message: KafkaMessage, evidence: Mapping[str, object]
    ) -> list[tuple[str, bytes]]:
        fields: dict[str, object] = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "topic-id": message.lane.committed.topic_id or "",
            "group": self._group,
            **evidence,
        }
        if _is_null(message):
            fields["null-value"] = True
        return [(HEADER_PREFIX + name, str(value).encode()) for name, value in fields.items()]

    async def _open(self, what: str) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is not None and has_failed_for_good(self._producer):
                # The SDK's producer cannot recover, for instance after a gap in its sequence numbers. So replace it.
                await self.aclose()
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self._settings.client_arguments(),
                    acks="all",
                    enable_idempotence=True,
                    # Set no size limit in the client, because our headers make the message larger than the original.
                    # The topic has its own limit.
                    max_request_size=_NO_LIMIT,
                )
                try:
                    await guarded(producer.start(), what)
                except BaseException:
                    with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                        await producer.stop()
                    raise
                self._producer = producer
        return self._producer

    async def aclose(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                try:
                    await guarded(producer.stop(), "closing of the dead-letter producer")
                except BrokerError as error:
                    # Only log an error of closing: each message was written, or the caller of `write` got an error.
                    logger.info("%s", error)


def _is_null(message: KafkaMessage) -> bool:
    """Whether the message has neither key nor value; the client refuses to write such a message."""
    return message.key is None and message.value is None
