"""Asset events from the messages of Kafka topics, or from ranges of their offsets."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer, check_topics
from producers.kafka.connection.topics import is_pattern
from producers.kafka.positions.start import Start
from producers.kafka.ranges.arguments import (
    interval_argument,
    max_offsets_argument,
    refuse_others,
)
from triggerer.abc import (
    BaseEventTrigger,
    BrokerMessage,
    DeliveryFacts,
    SourceLag,
    TriggerEvent,
)
from triggerer.errors import DagError
from triggerer.pluginkit.arguments import (
    default_group,
    describe_source,
    optional_text_argument,
    text_argument,
    texts_argument,
)
from triggerer.pluginkit.decoding import text_of
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    attributes,
    in_position,
    timestamp_ms,
)

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings


_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""The topic names that Kafka accepts."""


def _timestamp(message: BrokerMessage) -> int | None:
    # A Kafka message has its timestamp in milliseconds already. Computing the timestamp from `published_at` takes ten
    # times as long.
    return message.timestamp if isinstance(message, KafkaMessage) else timestamp_ms(message)


class KafkaEventTrigger(MessageTrigger):
    """Fires for each message of the topics that meets `match`.

    Watchers with equal topics, connection and group share one consumer. The `start` of the watcher that opens the
    consumer decides where reading begins.

    Args:
        topics: A topic, several topics, or a pattern: a regular expression that begins with `^`. A new topic that
            matches the pattern is found within `metadata_max_age_ms`, and read from its beginning. Exception: if no
            topic matched, and the stream is opened again after a restart or an error, topics that were created in the
            meantime are read from `start`. A pattern never matches dead-letter topics.
        connection: The section `[connections.<connection>]` of the configuration.
        group_id: The consumer group, for which positions are committed. The default is `triggerer-` and a digest of
            topics and connection; the trigger's other arguments do not change it.
        start: Where to start in a partition without a commit of the group: "earliest", "latest", a time or offsets. A
            time is a string such as "2026-11-22T06:00Z", or an aware `datetime`. Offsets are given by topic and
            partition, such as `{"orders": {"0": 1200}}`. A partition that is not named, or is added later, is read from
            its beginning.
        match, decode, extra, partition_key: See `MessageTrigger`. The value of a tombstone is null. The default `extra`
            has `value`, `key`, `topic`, `partition`, `offset` and `timestamp`. The timestamp is Kafka's, in
            milliseconds; a key that is not UTF-8, or has a NUL character, is written as `base64:…`.
    Raises:
        DagError: An argument is not as described.
    """

    HAS_SCHEMA_REGISTRY: ClassVar[bool] = True
    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        "key": lambda message: text_of(message.key),
        **in_position("topic", "partition", "offset"),
        "timestamp": _timestamp,
        "headers": attributes,
    }

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        connection: str = "kafka",
        group_id: str | None = None,
        start: str | datetime | Mapping[str, Any] = "earliest",
        match: Mapping[str, Any] | str | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.topics = _topics(topics)
        self.group_id = optional_text_argument(group_id, "group_id")
        self.start = _start(start)
        super().__init__(
            connection=connection,
            match=match,
            decode=decode,
            extra=extra,
            partition_key=partition_key,
        )

    @property
    def group(self) -> str:
        """The consumer group that is used."""
        # The order of the topics and repeated names do not change the group.
        return self.group_id or default_group(self.connection, self.topics)

    def shared_stream_key(self) -> Hashable:
        return ("kafka", self.connection, self.group, *self.topics)

    def describe_stream(self) -> str:
        topics, group = ", ".join(self.topics), f"group {self.group}"
        return describe_source("kafka", topics, group, connection=self.connection)

    async def check_source(self) -> None:
        await check_topics(self._settings(), self.topics)

    async def measure_lag(self) -> SourceLag:
        # Imported here: only `measure_lag` needs the admin client.
        from producers.kafka.lag import measure_lag

        return await measure_lag(self._settings(), self.topics, self.group, self.start)

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        # Imported here: only `triggerer check` and watchers that demand a guarantee need this module.
        from producers.kafka.guarantees import describe_delivery

        return await describe_delivery(self._settings(), self.topics, self.group, ask=ask)

    def make_producer(self) -> KafkaSharedStreamProducer:
        return KafkaSharedStreamProducer(
            self.topics, settings=self._settings(), group=self.group, start=self.start
        )

    def _settings(self) -> KafkaSettings:
        return _settings(self.connection)

    def default_extra(self, message: BrokerMessage, value: Any) -> dict[str, Any]:
        if isinstance(message, KafkaMessage):
            # A shortcut for the producer's own messages. It takes half the time of the general code below.
            topic, partition = message.lane.partition
            key = message.key
            return {
                "value": value,
                "key": None if key is None else text_of(key),
                "topic": topic,
                "partition": partition,
                "offset": message.offset,
                "timestamp": message.timestamp,
            }
        return {
            "value": value,
            "key": text_of(message.key),
            **message.position,
            "timestamp": _timestamp(message),
        }


class KafkaRangeTrigger(BaseEventTrigger):
    """Fires for ranges of new offsets: one event for each partition with new messages, every `interval`.

    - The trigger reads no messages, and joins no consumer group.
    - An event's `extra` has `topic`, `topic_id`, `partition`, `from` and `to` (exclusive), which
      `triggerer.kafka_ranges` reads.
    - The watcher's position is stored in the same transaction as the events. The position stays if the trigger's
      arguments change.

    Each new offset is in exactly one event of a watcher, with two exceptions:

    - Retention deleted offsets before they were in an event. The next event has their number as `deleted`.
    - A log lost its end, and new messages got the lost offsets. The next event has `rewound_from`. Earlier events
      contain the offsets from `from` up to `rewound_from` too. There the offsets belong to the lost messages.

    Args:
        topics: As for `KafkaEventTrigger`. But a topic that a pattern finds after the first look-up is always read from
            its beginning.
        interval: Seconds between two look-ups of the partitions' ends.
        max_offsets: The most offsets of one event. More new offsets make several events. None: no limit.
        connection: The section `[connections.<connection>]` of the configuration. If its `isolation_level` is
            "read_committed" (the default), a range ends before the first open transaction.
        start: As for `KafkaEventTrigger`. It applies to topics in which the watcher has no position.
    Raises:
        DagError: An argument is not as described, or applies to the reading of messages, such as `match`.
    """

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        interval: float = 10.0,
        max_offsets: int | None = None,
        connection: str = "kafka",
        start: str | datetime | Mapping[str, Any] = "earliest",
        **others: Any,
    ) -> None:
        refuse_others("KafkaRangeTrigger", others)
        self.topics = _topics(topics)
        self.connection = text_argument(connection, "connection")
        self.interval = interval_argument(interval)
        self.max_offsets = max_offsets_argument(max_offsets)
        self.start = _start(start)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        cls = type(self)
        return f"{cls.__module__}.{cls.__qualname__}", {
            "topics": self.topics,
            "interval": self.interval,
            "max_offsets": self.max_offsets,
            "connection": self.connection,
            "start": self.start,
        }

    def describe_stream(self) -> str:
        return describe_source(
            "kafka", ", ".join(self.topics), "ranges", connection=self.connection
        )

    async def check_source(self) -> None:
        await check_topics(_settings(self.connection), self.topics)

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        # Imported here: only `triggerer check` and watchers that demand a guarantee need this module.
        from producers.kafka.ranges.guarantees import describe_delivery

        return await describe_delivery(_settings(self.connection), self.topics, ask=ask)

    async def run_from(self, bookmark: Any) -> AsyncIterator[tuple[list[TriggerEvent], Any]]:
        # Imported here: parsing a DAG file needs no Kafka client.
        from producers.kafka.ranges.log_ends import open_log_ends
        from producers.kafka.ranges.watching import new_ranges

        settings = _settings(self.connection)
        async with open_log_ends(settings, self.topics, self.start) as ends:
            async for ranges, after in new_ranges(
                ends, bookmark, interval_s=self.interval, max_offsets=self.max_offsets
            ):
                yield [TriggerEvent(one.extra, key=one.key) for one in ranges], after


def _start(start: Any) -> Any:
    try:
        return Start.parse(start).to_json()
    except ValueError as error:
        raise DagError(f"start is {start!r}: {error}") from error


def _settings(connection: str) -> KafkaSettings:
    # Imported here: parsing a DAG file needs no settings, and no pydantic.
    from producers.kafka.settings import KafkaSettings

    return KafkaSettings.load(connection)


def _topics(value: Any) -> list[str]:
    names = texts_argument(value, "topics", each="the name of a topic")
    for pattern in filter(is_pattern, names):
        if len(names) > 1:
            raise DagError(
                f"the pattern {pattern!r} must be alone, not one of several topics",
                hint="write the other topics into it: ^(orders-.*|returns)$",
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise DagError(f"{pattern!r} is no pattern of topics: {error}") from error
    for name in names:
        if not is_pattern(name) and not _TOPIC.fullmatch(name):
            raise DagError(
                f"{name!r} cannot be the name of a topic: it has at most 249 letters, digits, '.', '_' and '-'",
                hint=_meant(name),
            )
    return names


def _meant(name: str) -> str | None:
    if "," in name:
        return f"write several topics as a list: {[one.strip() for one in name.split(',')]}"
    if set("*?").isdisjoint(name):
        return None
    pattern = re.escape(name).replace(r"\*", ".*").replace(r"\?", ".").replace(r"\-", "-")
    return f"a pattern of topics is a regular expression that begins with ^, such as {'^' + pattern + '$'!r}"
