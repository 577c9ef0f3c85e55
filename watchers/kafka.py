"""Asset events from the messages of Kafka topics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer, check_topics
from triggerer.abc import BrokerMessage, DeliveryFacts
from triggerer.errors import DagError
from triggerer.pluginkit.decoding import text_of
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    text_argument,
    texts_of,
    timestamp_ms,
)

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings


def _timestamp(message: BrokerMessage) -> int | None:
    # A record's own number is at hand; a tenth of the time that it takes to make an instant and a number of it.
    return message.timestamp if isinstance(message, KafkaMessage) else timestamp_ms(message)


class KafkaEventTrigger(MessageTrigger):
    """Fires for each message of the topics that meets `match`.

    Watchers with equal topics, connection and group share one consumer, with the `start` of the one that opens it.

    Args:
        topics: A topic, or several.
        connection: The section `[connections.<connection>]` of the configuration.
        group_id: The consumer group, which holds the position. The default, `triggerer-` and a digest of topics and
            connection, does not change with the trigger's other arguments.
        start: "earliest" or "latest": where to start in a partition without a commit of the group.
        match, decode, extra, partition_key: See `MessageTrigger`. The value of a tombstone is null. The default `extra`
            has `value`, `key`, `topic`, `partition`, `offset` and `timestamp`. The timestamp is Kafka's, in
            milliseconds; a key that is not UTF-8 is written as `base64:…`.
    Raises:
        DagError: An argument is not as described.
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        "key": lambda message: text_of(message.key),
        "topic": lambda message: message.position["topic"],
        "partition": lambda message: message.position["partition"],
        "offset": lambda message: message.position["offset"],
        "timestamp": _timestamp,
        "headers": lambda message: texts_of(message.attributes),
    }

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        connection: str = "kafka",
        group_id: str | None = None,
        start: str = "earliest",
        match: Mapping[str, Any] | str | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.topics = _topics(topics)
        self.group_id = None if group_id is None else text_argument(group_id, "group_id")
        if start not in ("earliest", "latest"):
            raise DagError(f'start must be "earliest" or "latest", not {start!r}')
        self.start = start
        super().__init__(
            connection=connection,
            match=match,
            decode=decode,
            extra=extra,
            partition_key=partition_key,
        )

    def source_arguments(self) -> dict[str, Any]:
        return {"topics": self.topics, "group_id": self.group_id, "start": self.start}

    @property
    def group(self) -> str:
        """The consumer group that is used."""
        return self.group_id or default_group(self.topics, self.connection)

    def shared_stream_key(self) -> Hashable:
        return ("kafka", self.connection, self.group, *self.topics)

    async def check_source(self) -> None:
        await check_topics(self._settings(), self.topics)

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        limit = self._settings().max_deliveries
        return DeliveryFacts(
            is_acknowledged=True,
            because="offsets are committed after the events are durable",
            key="the topic's id, partition and offset",
            drops_after=limit or None,
            has_dead_letters=True if limit else None,
        )

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> KafkaSharedStreamProducer:
        trigger = cls(**kwargs)
        return KafkaSharedStreamProducer(
            trigger.topics,
            settings=trigger._settings(),
            group=trigger.group,
            start="latest" if trigger.start == "latest" else "earliest",
        )

    def _settings(self) -> KafkaSettings:
        # Not at the top: a DAG file that is parsed needs no settings, and no pydantic.
        from producers.kafka.settings import KafkaSettings

        return KafkaSettings.load(self.connection)

    def default_extra(self, message: BrokerMessage, value: Any) -> dict[str, Any]:
        return {
            "value": value,
            "key": text_of(message.key),
            **message.position,
            "timestamp": _timestamp(message),
        }


def _topics(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Iterable) or not (names := list(names)):
        raise DagError(f"topics must be the name of a topic or a list of names, not {value!r}")
    return sorted({text_argument(name, "a topic") for name in names})


def default_group(topics: Iterable[str], connection: str) -> str:
    """Return the group of watchers without `group_id`. The order of the topics does not matter."""
    identity = json.dumps([connection, sorted(set(topics))], separators=(",", ":"))
    return "triggerer-" + hashlib.sha256(identity.encode()).hexdigest()[:16]
