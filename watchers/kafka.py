"""Asset events from the messages of Kafka topics."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from producers.kafka import KafkaMessage, KafkaSharedStreamProducer, check_topics
from triggerer.abc import (
    BaseEventTrigger,
    SharedStreamSelector,
    TriggerEvent,
    get_connection,
    reject_shared_stream_event,
)
from triggerer.errors import DagError
from watchers.matching import (
    canonical,
    compile_extra,
    compile_match,
    compile_path,
    selected_by,
)

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)


def _text(raw: bytes | None) -> str | None:
    """Return the bytes as UTF-8 text, or as `base64:…` if they are none; None stays None."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()


ATTRIBUTES: Final[Mapping[str, Callable[[KafkaMessage], Any]]] = {
    "key": lambda message: _text(message.record.key),
    "topic": lambda message: message.record.topic,
    "partition": lambda message: message.record.partition,
    "offset": lambda message: message.record.offset,
    "timestamp": lambda message: message.record.timestamp,
    # The last of several headers with the same name wins.
    "headers": lambda message: {name: _text(value) for name, value in message.record.headers},
}

_DECODERS: Final[Mapping[str | None, Callable[[KafkaMessage], Any]]] = {
    # Not KafkaMessage.json: the simulation's messages have another class.
    "json": lambda message: message.json(),
    "text": lambda message: None if message.value is None else message.value.decode(),
    "bytes": lambda message: (
        None if message.value is None else base64.b64encode(message.value).decode()
    ),
    None: lambda message: None,
}


class KafkaEventTrigger(BaseEventTrigger):
    """Fires for each message of the topics that meets `match`.

    Watchers with equal topics, connection and group share one consumer, with the `start` of the one that opens it.

    Args:
        topics: A topic, or several.
        connection: The section `[connections.<connection>]` of the configuration.
        group_id: The consumer group, which holds the position. The default, `triggerer-` and a digest of topics and
            connection, does not change with the trigger's other arguments.
        start: "earliest" or "latest": where to start in a partition without a commit of the group.
        match: A condition on the message, see `watchers.matching`. None: every message fires.
        decode: How to decode the value: "json", "text" (UTF-8), "bytes" (base64 in the event) or None (not at all).
            A message that cannot be decoded is rejected: it is logged and passed. The value of a tombstone is null.
        extra: The fields of the asset event's `extra`: for each name a path as in `match`, or `{"const": …}`. Default:
            `value`, `key`, `topic`, `partition`, `offset` and `timestamp`. The timestamp is Kafka's, in milliseconds; a
            key that is not UTF-8 is written as `base64:…`.
    Raises:
        DagError: An argument is not as described.
    """

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        connection: str = "kafka",
        group_id: str | None = None,
        start: str = "earliest",
        match: Mapping[str, Any] | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.topics = _topics(topics)
        self.connection = _text_argument(connection, "connection")
        self.group_id = None if group_id is None else _text_argument(group_id, "group_id")
        if start not in ("earliest", "latest"):
            raise DagError(f'start must be "earliest" or "latest", not {start!r}')
        if decode not in _DECODERS:
            raise DagError(f'decode must be "json", "text", "bytes" or None, not {decode!r}')
        self.start = start
        self.match = canonical(match, "match")
        self.decode = decode
        self.extra = canonical(extra, "extra")
        self._matches = compile_match(self.match, ATTRIBUTES)
        self._build_extra = compile_extra(self.extra, ATTRIBUTES) or _default_extra
        self._read = _DECODERS[decode]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "watchers.kafka.KafkaEventTrigger",
            {
                "topics": self.topics,
                "connection": self.connection,
                "group_id": self.group_id,
                "start": self.start,
                "match": self.match,
                "decode": self.decode,
                "extra": self.extra,
            },
        )

    @property
    def group(self) -> str:
        """The consumer group that is used."""
        return self.group_id or default_group(self.topics, self.connection)

    def shared_stream_key(self) -> Hashable:
        return ("kafka", self.connection, self.group, *self.topics)

    async def check_source(self) -> None:
        await check_topics(self._settings(), self.topics)

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

        return KafkaSettings.from_mapping(self.connection, get_connection(self.connection))

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        """Select by a field that `match` compares with fixed values, if there is one."""
        found = selected_by(self.match)
        if found is None:
            return None
        path, values = found
        get, decode = compile_path(path, ATTRIBUTES), self._read
        return SharedStreamSelector(
            (self.decode, path), lambda message: get(message, decode(message)), values
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[KafkaMessage]
    ) -> AsyncIterator[TriggerEvent]:
        read, matches, build_extra = self._read, self._matches, self._build_extra
        async for message in shared_stream:
            try:
                value = read(message)
            except ValueError as error:
                logger.warning(
                    "message rejected, it is not %s: %r: %s", self.decode, message, error
                )
                reject_shared_stream_event()
                continue
            if matches is None or matches(message, value):
                yield TriggerEvent(build_extra(message, value))


def _text_argument(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise DagError(f"{what} must be a non-empty text, not {value!r}")
    return value


def _topics(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Iterable) or not (names := list(names)):
        raise DagError(f"topics must be the name of a topic or a list of names, not {value!r}")
    return sorted({_text_argument(name, "a topic") for name in names})


def default_group(topics: Iterable[str], connection: str) -> str:
    """Return the group of watchers without `group_id`. The order of the topics does not matter."""
    identity = json.dumps([connection, sorted(set(topics))], separators=(",", ":"))
    return "triggerer-" + hashlib.sha256(identity.encode()).hexdigest()[:16]


def _default_extra(message: KafkaMessage, value: Any) -> dict[str, Any]:
    record = message.record
    key = record.key
    return {
        "value": value,
        "key": None if key is None else _text(key),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
