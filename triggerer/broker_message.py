"""The message that a filter receives, from any broker."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

import orjson

_T = TypeVar("_T")

_NOT_DECODED: Final = object()
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
# A positive integer of more than 64 bits has at least 20 digits, a negative one has at least 19.
_LONG: Final = b"0" * 20
_LONG_NEGATIVE: Final = b"-" + b"0" * 19
_MAYBE_LONG: Final = b"0" * 19


def read_json(text: bytes) -> Any:
    """Return the value of a JSON text, with all digits of its integers.

    `orjson` reads an integer of more than 64 bits as a float, which loses digits. So a text that may have such an
    integer is read again by Python's parser, which is slower.

    Raises:
        ValueError: The text is not JSON; or it has long integers, and is nested too deeply.
        MemoryError: There was not enough memory.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # A filter rejects a message if decoding raises a ValueError, and JSONDecodeError is a ValueError. A message
        # must not be rejected for a lack of memory.
        if error.msg.startswith("Not enough memory"):
            raise MemoryError(error.msg) from error
        raise
    # For a text of 100 to 800 bytes, this search takes 0.4 to 0.9 µs. If it finds a string or a fraction, the result is
    # equal.
    digits = text.translate(_AS_ZEROS)
    if _MAYBE_LONG not in digits or (_LONG not in digits and _LONG_NEGATIVE not in digits):
        return value
    try:
        # Python's parser accepts more than JSON allows, but `orjson` has refused such a text.
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it has long integers, and is nested too deeply") from error


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

        The value may begin with UTF-8's byte order mark, which some publishers write. Integers have all their digits,
        but the database stores only those of up to 64 bits.

        Raises:
            ValueError: The value is not JSON.
            MemoryError: There was not enough memory to decode the value.
        """
        decoded = self._json
        if decoded is _NOT_DECODED:
            value = self.value
            try:
                decoded = None if value is None else read_json(value)
            except orjson.JSONDecodeError:
                if value is None or not value.startswith(BOM_UTF8):
                    raise
                decoded = read_json(value[len(BOM_UTF8) :])
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
