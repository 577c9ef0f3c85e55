"""The message that a filter receives, from any broker."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

import orjson

_T = TypeVar("_T")

_NOT_DECODED: Final = object()


@dataclass(frozen=True, slots=True, init=False)
class BrokerMessage:
    """A message as filters see it, from any broker.

    Attributes:
        value: The body; None if the message has none (a Kafka tombstone).
        key: The value that orders messages: a Kafka record's key, a message group, an ordering key, a session.
        attributes: Headers, attributes or properties. If several have the same name, only the last one is here.
        position: The message's position at the broker, as JSON: topic, partition and offset; queue and message id; …
        published_at: When the message was published, by the broker's or the publisher's clock (aware, UTC).
        deliveries: How often the broker has delivered the message, including this delivery; None if unknown.
    """

    value: bytes | None
    key: bytes | None = None
    attributes: Mapping[str, str | bytes] = field(default_factory=dict)
    position: Mapping[str, Any] = field(default_factory=dict)
    published_at: datetime | None = None
    deliveries: int | None = None
    _json: Any = field(init=False, repr=False, compare=False, default=_NOT_DECODED)
    _decoded: dict[str, Any] | None = field(init=False, repr=False, compare=False, default=None)

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None = None,
        attributes: Mapping[str, str | bytes] | None = None,
        position: Mapping[str, Any] | None = None,
        published_at: datetime | None = None,
        deliveries: int | None = None,
    ) -> None:
        store = object.__setattr__
        store(self, "value", value)
        store(self, "key", key)
        store(self, "attributes", {} if attributes is None else attributes)
        store(self, "position", {} if position is None else position)
        store(self, "published_at", published_at)
        store(self, "deliveries", deliveries)
        self.forget_decoded()

    def __post_init__(self) -> None:
        """Called only by the constructor that `dataclass` generates for a subclass. It does not call `__init__`."""
        self.forget_decoded()

    def decoded(self, name: str, decode: Callable[[BrokerMessage], Any]) -> Any:
        """Return the result of `decode`, which is called only once for each `name`.

        All subscribers of the stream share the result: do not change it. If `decode` raises, the next call tries again.
        """
        kept = self._decoded
        if kept is None:
            kept = {}
            _set_decoded(self, kept)
        if name not in kept:
            kept[name] = decode(self)
        return kept[name]

    def json(self) -> Any:
        """Return the value decoded as JSON; None if there is no value.

        All subscribers of the stream share the result: do not change it.

        The value may begin with UTF-8's byte order mark, which some publishers write.

        Raises:
            ValueError: The value is not JSON.
            MemoryError: There was not enough memory to decode the value.
        """
        decoded = self._json
        if decoded is _NOT_DECODED:
            value = self.value
            try:
                decoded = None if value is None else orjson.loads(value)
            except orjson.JSONDecodeError as error:
                _raise_if_no_memory(error)
                if value is None or not value.startswith(BOM_UTF8):
                    raise
                try:
                    decoded = orjson.loads(value[len(BOM_UTF8) :])
                except orjson.JSONDecodeError as of_rest:
                    _raise_if_no_memory(of_rest)
                    raise
            _set_json(self, decoded)
        return decoded

    def forget_decoded(self) -> None:
        """Drop the decoded values. They are decoded again when a filter needs them.

        A subclass whose constructor does not call `BrokerMessage.__init__` must call this method in its constructor.
        """
        _set_json(self, _NOT_DECODED)
        _set_decoded(self, None)

    def __repr__(self) -> str:
        """Show position and size, but no content, which may be long or confidential."""
        place = " ".join(f"{name}={value}" for name, value in self.position.items())
        return f"<{type(self).__name__} {place} of {len(self.value or b'')} bytes>"

    # For a filter in another process, the message is pickled without its decoded values.

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _MESSAGE_STATE)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(_MESSAGE_STATE, state, strict=True):
            object.__setattr__(self, name, value)
        self.forget_decoded()


_MESSAGE_STATE: Final = (
    "value",
    "key",
    "attributes",
    "position",
    "published_at",
    "deliveries",
)


def _raise_if_no_memory(error: orjson.JSONDecodeError) -> None:
    # A filter rejects a message if decoding raises a ValueError, and JSONDecodeError is a ValueError. A message must
    # not be rejected for a lack of memory.
    if error.msg.startswith("Not enough memory"):
        raise MemoryError(error.msg) from error


# A subclass may have further attributes. But in a frozen dataclass with slots, the generated `__setattr__` and
# `__delattr__` raise `TypeError` for a name that is not a field (in Python 3.13, at least). So `_set` and `_delete`
# replace them.


def _set(self: BrokerMessage, name: str, value: object) -> None:
    _refuse_change(self, name)
    object.__setattr__(self, name, value)


def _delete(self: BrokerMessage, name: str) -> None:
    _refuse_change(self, name)
    object.__delattr__(self, name)


def _refuse_change(message: BrokerMessage, name: str) -> None:
    if type(message) is BrokerMessage or name in BrokerMessage.__dataclass_fields__:
        raise FrozenInstanceError(
            f"{name} of a message cannot be changed: all watchers share the message"
        )


BrokerMessage.__setattr__ = _set  # type: ignore[assignment,method-assign]
BrokerMessage.__delattr__ = _delete  # type: ignore[assignment,method-assign]

# Decoded values are stored in the message, although it is frozen.
_set_json: Final = vars(BrokerMessage)["_json"].__set__
_set_decoded: Final = vars(BrokerMessage)["_decoded"].__set__
