"""The trigger of a message broker: what all of them have in common."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from triggerer.abc import (
    BaseEventTrigger,
    BrokerMessage,
    SharedStreamSelector,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.errors import DagError
from triggerer.pluginkit.decoding import find_decoding
from triggerer.pluginkit.matching import (
    MISSING,
    canonical,
    compile_extra,
    compile_match,
    compile_path,
    selected_by,
)
from triggerer.pluginkit.texts import texts_of

__all__ = ["Attribute", "MessageTrigger", "text_argument", "texts_of", "timestamp_ms"]

logger = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Attribute = Callable[[Any], Any]


class MessageTrigger(BaseEventTrigger):
    """Fires for each message of a source that meets `match`. The base class of the triggers of all brokers.

    A subclass has the arguments that name the source, calls `super().__init__` with the others, and implements
    `source_arguments`, `shared_stream_key`, `create_shared_stream_producer` and `default_extra`. Arguments that the key
    does not cover belong to the filter, so two watchers that differ in them share a stream.

    Args:
        connection: The section `[connections.<connection>]` of the configuration.
        match: A condition on the message, see `triggerer.pluginkit.matching`. None: every message fires.
        decode: How to decode the value, see `triggerer.pluginkit.decoding`. A message that cannot be decoded is
            rejected: it is logged and passed.
        extra: The fields of the asset event's `extra`: for each name a path as in `match`, or `{"const": …}`. None:
            what the broker's trigger says.
        partition_key: The path to the asset event's partition key. A number is written as text; where there is no
            text and no number, the event has none.
    Raises:
        DagError: An argument is not as described.
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {}
    """What may follow `@` in a path, besides `@value`, with the function that gets it from a message."""

    HAS_SCHEMA_REGISTRY: ClassVar[bool] = False
    """Whether the broker's connection may name a schema registry."""

    def __init__(
        self,
        *,
        connection: str,
        match: Mapping[str, Any] | str | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.connection = text_argument(connection, "connection")
        self.match = canonical(match, "match")
        self.decode = decode
        self.extra = canonical(extra, "extra")
        self.partition_key = partition_key
        self._decoding = find_decoding(
            decode, registry_of=connection if self.HAS_SCHEMA_REGISTRY else None
        )
        self._matches = compile_match(self.match, self.ATTRIBUTES)
        self._build_extra = compile_extra(self.extra, self.ATTRIBUTES) or self._find_default_extra()
        self._get_partition_key = (
            None if partition_key is None else compile_path(partition_key, self.ATTRIBUTES)
        )

    @abstractmethod
    def source_arguments(self) -> dict[str, Any]:
        """The arguments that name the source (JSON), by their names in the constructor."""

    @abstractmethod
    def default_extra(self, message: Any, value: Any) -> dict[str, Any]:
        """What an asset event says of a message where no `extra` was given."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        cls = type(self)
        arguments = {
            **self.source_arguments(),
            "connection": self.connection,
            "match": self.match,
            "decode": self.decode,
            "extra": self.extra,
        }
        if self.partition_key is not None:
            # Not otherwise: watchers of earlier releases keep their triggers.
            arguments["partition_key"] = self.partition_key
        return f"{cls.__module__}.{cls.__qualname__}", arguments

    def _find_default_extra(self) -> Callable[[Any, Any], dict[str, Any]]:
        fields = self._decoding.fields
        if fields is None:
            return self.default_extra
        return lambda _, value: {name: value.get(name) for name in fields}

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        """Select by a field that `match` compares with fixed values, if there is one."""
        found = selected_by(self.match)
        if found is None or self._decoding.several or self._decoding.prepare is not None:
            return None
        path, values = found
        get, read = compile_path(path, self.ATTRIBUTES), self._decoding.read
        return SharedStreamSelector(
            (self.decode, path), lambda message: get(message, read(message)), values
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[BrokerMessage]
    ) -> AsyncIterator[TriggerEvent]:
        read, several = self._decoding.read, self._decoding.several
        matches, build_extra = self._matches, self._build_extra
        get_key, prepare = self._get_partition_key, self._decoding.prepare
        async for message in shared_stream:
            try:
                if prepare is not None:
                    await prepare(message)
                value = read(message)
            except ValueError as error:
                logger.warning(
                    "message rejected, it is not %s: %r: %s", self.decode, message, error
                )
                reject_shared_stream_event()
                continue
            if several:
                for part in value:
                    if matches is None or matches(message, part):
                        key = None if get_key is None else _key_text(get_key(message, part))
                        yield TriggerEvent(build_extra(message, part), partition_key=key)
            elif matches is None or matches(message, value):
                if get_key is None:
                    yield TriggerEvent(build_extra(message, value))
                else:
                    key = _key_text(get_key(message, value))
                    yield TriggerEvent(build_extra(message, value), partition_key=key)

    async def cleanup(self) -> None:
        if self._decoding.aclose is not None:
            await self._decoding.aclose()


def text_argument(value: Any, what: str) -> str:
    """Return a text that is not empty.

    Raises:
        DagError: It is none.
    """
    if not isinstance(value, str) or not value:
        raise DagError(f"{what} must be a non-empty text, not {value!r}")
    return value


def timestamp_ms(message: BrokerMessage) -> int | None:
    """When the message was published, in milliseconds since the epoch; None where the broker does not say."""
    published = message.published_at
    return None if published is None else (published - _EPOCH) // _MILLISECOND


def _key_text(found: Any) -> str | None:
    if isinstance(found, str):
        return found
    if found is MISSING or isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    return str(found)
