"""The common base class of all message brokers' triggers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, ClassVar, Final

from triggerer.abc import (
    BaseEventTrigger,
    BrokerMessage,
    SharedStreamProducer,
    SharedStreamSelector,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.errors import PluginError
from triggerer.pluginkit.arguments import text_argument
from triggerer.pluginkit.decoding import find_decoding
from triggerer.pluginkit.matching import (
    MISSING,
    canonical,
    compile_extra,
    compile_match,
    compile_path,
    selected_by,
)
from triggerer.pluginkit.texts import text_of, texts_of

__all__ = [
    "Attribute",
    "MessageTrigger",
    "attributes",
    "deliveries",
    "in_position",
    "text_argument",
    "texts_of",
    "timestamp_ms",
]

logger = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Attribute = Callable[[Any], Any]
"""Reads one attribute, such as the topic, from a message."""


class MessageTrigger(BaseEventTrigger):
    """The base class of the triggers of all brokers. It makes an event of each message that meets `match`.

    If `decode` reads a list from a message, each element that meets `match` makes its own event.

    A subclass adds the arguments that name the source, and stores each in an attribute of the same name. The subclass
    passes the arguments below to `super().__init__`, and implements `shared_stream_key` and `make_producer`. Two
    watchers with equal stream keys share a stream. So the key must not contain arguments that only the filter uses,
    such as `match`.

    Args:
        connection: The section `[connections.<connection>]` of the configuration.
        match: A condition on the message, see `triggerer.pluginkit.matching`. None: every message makes an event.
        decode: How to decode the value, see `triggerer.pluginkit.decoding`. A message that cannot be decoded is
            rejected.
        extra: The asset event's `extra`: maps each name to a path as in `match`, or to `{"const": …}`. None: the
            default of the broker's trigger.
        partition_key: The path to the field with the asset event's partition key. A number becomes a string. If the
            field is neither a string nor a number, the event has no key.
    Raises:
        DagError: An argument is not as described.
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {}
    """The names that may follow `@` in a path, besides `@value`. Each name has a function that
    reads the property of this name from a message.
    """

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

    def make_producer(self) -> SharedStreamProducer:
        """Make a producer for the stream of this trigger. The producer does nothing before `open_stream`.

        Raises:
            NotImplementedError: The class overrides neither this method nor `create_shared_stream_producer`.
        """
        # Not abstract, because older plugins override `create_shared_stream_producer` instead.
        raise NotImplementedError(
            f"{type(self).__qualname__} makes no producer: it has to implement make_producer()"
        )

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls(**kwargs).make_producer()

    def source_arguments(self) -> dict[str, Any]:
        """Return the arguments that name the source (JSON), by their names in the constructor.

        By default these are the arguments that the subclass adds to those of `MessageTrigger`. Each value comes from
        the attribute of the same name.

        Raises:
            PluginError: An attribute is missing.
        """
        return {name: self._stored_argument(name) for name in _source_parameters(type(self))}

    def _stored_argument(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            kind = type(self).__qualname__
            raise PluginError(
                f"{kind} does not store the argument `{name}` of its constructor",
                hint=f"set `self.{name}` there, or implement source_arguments()",
            ) from None

    def default_extra(self, message: Any, value: Any) -> dict[str, Any]:
        """Return an event's `extra` for a trigger without `extra`. By default it has the value and all `ATTRIBUTES`."""
        return {"value": value} | {name: get(message) for name, get in self.ATTRIBUTES.items()}

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
            # Omit the argument if it is None. Otherwise triggers that were stored before the argument existed would
            # count as changed.
            arguments["partition_key"] = self.partition_key
        return f"{cls.__module__}.{cls.__qualname__}", arguments

    def _find_default_extra(self) -> Callable[[Any, Any], dict[str, Any]]:
        fields = self._decoding.fields
        if fields is None:
            return self.default_extra
        return lambda _, value: {name: value.get(name) for name in fields}

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        """Return a selector for a field that `match` compares with fixed values; None if no selector is possible.

        The runtime then wakes this trigger's filter only for messages with one of these values.
        """
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
        is_json = self._decoding.name == "json"
        async for message in shared_stream:
            try:
                if prepare is not None:
                    await prepare(message)
                # JSON is the most common case, and a direct call is faster.
                value = message.json() if is_json else read(message)
            except ValueError as error:
                logger.warning(
                    "message rejected, it is not %s: %r: %s", self.decode, message, error
                )
                reject_shared_stream_event(f"it is not {self.decode}: {error}")
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


@cache
def _source_parameters(kind: type[MessageTrigger]) -> tuple[str, ...]:
    """Return the arguments that subclasses add. An argument that a subclass passes on as `**arguments` counts, too."""
    names: dict[str, None] = {}
    common = inspect.signature(MessageTrigger).parameters
    for cls in kind.__mro__[: kind.__mro__.index(MessageTrigger)]:
        if "__init__" in vars(cls):
            _, *parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
            names |= {
                one.name: None
                for one in parameters
                if one.name not in common and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            }
    return tuple(names)


def in_position(*names: str) -> dict[str, Attribute]:
    """Return a function for each name. The function reads the field of this name in a message's position.

    If the field is missing, the function returns None.
    """
    return {name: _reading(name) for name in names}


def _reading(name: str) -> Attribute:
    def read(message: BrokerMessage) -> Any:
        found = message.position.get(name)
        # The sender may have chosen this string, such as a session's id. So the string may have characters that the
        # database cannot store.
        return text_of(found) if type(found) is str else found

    return read


def attributes(message: BrokerMessage) -> dict[str, str | None]:
    """Return the message's own attributes (headers, properties) in a form that JSON supports."""
    return texts_of(message.attributes)


def deliveries(message: BrokerMessage) -> int | None:
    """Return how often the message was delivered, this delivery included; None if the broker does not tell."""
    return message.deliveries


def timestamp_ms(message: BrokerMessage) -> int | None:
    """Return when the message was published, in milliseconds since the epoch; None if the time is not known."""
    published = message.published_at
    return None if published is None else (published - _EPOCH) // _MILLISECOND


def _key_text(found: Any) -> str | None:
    if isinstance(found, str):
        return found
    if found is MISSING or isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    return str(found)
