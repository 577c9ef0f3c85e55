"""A message as filters see it, whatever broker it is from."""

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
    """A message as filters see it, whatever broker it is from.

    Attributes:
        value: The body; None where the broker has messages without one (a Kafka tombstone).
        key: What orders messages at the broker: a Kafka record's key, a message group, an ordering key, a session.
        attributes: Headers, attributes or properties. Of several with one name the last counts.
        position: Where the broker has it, JSON: topic, partition and offset; queue and message id; and so on.
        published_at: When it was published, by the broker's or the publisher's clock (aware, UTC).
        deliveries: How often the broker has delivered it, this time included; None where it does not say.
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
        """Called of a subclass that is a dataclass, instead of the constructor above."""
        self.forget_decoded()

    def decoded(self, name: str, decode: Callable[[BrokerMessage], Any]) -> Any:
        """Return what `decode` makes of the message: computed for whoever asks first, and kept under `name`.

        It is shared by all subscribers of the stream: do not change it. Where `decode` raises, nothing is kept.
        """
        kept = self._decoded
        if kept is None:
            kept = {}
            _set_decoded(self, kept)
        if name not in kept:
            kept[name] = decode(self)
        return kept[name]

    def json(self) -> Any:
        """Return the value decoded as JSON; None where there is none. It is shared: do not change it.

        It may begin with the mark of UTF-8's byte order, as some publishers write it.

        Raises:
            ValueError: The value is not JSON.
            MemoryError: It may be.
        """
        decoded = self._json
        if decoded is _NOT_DECODED:
            value = self.value
            try:
                decoded = None if value is None else orjson.loads(value)
            except orjson.JSONDecodeError as error:
                assert value is not None
                if value.startswith(BOM_UTF8):
                    decoded = orjson.loads(value[len(BOM_UTF8) :])
                # It says so of JSON for which there is no memory, too; such a message must not be rejected.
                elif error.msg.startswith("Not enough memory"):
                    raise MemoryError(error.msg) from error
                else:
                    raise
            _set_json(self, decoded)
        return decoded

    def forget_decoded(self) -> None:
        """Decode it anew when it is asked for again. Called first where a subclass does without the constructor."""
        _set_json(self, _NOT_DECODED)
        _set_decoded(self, None)

    def __repr__(self) -> str:
        """Where it has its place, and how large it is; not what is in it, which may be long or nobody's business."""
        place = " ".join(f"{name}={value}" for name, value in self.position.items())
        return f"<{type(self).__name__} {place} of {len(self.value or b'')} bytes>"

    # Pickled for a filter in another process: without what was decoded.

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


# Python 3.11 makes both for the class as it was before it had slots, and they raise `TypeError`.


def _set(self: BrokerMessage, name: str, value: object) -> None:
    _refuse_change(self, name)
    object.__setattr__(self, name, value)


def _delete(self: BrokerMessage, name: str) -> None:
    _refuse_change(self, name)
    object.__delattr__(self, name)


def _refuse_change(message: BrokerMessage, name: str) -> None:
    if type(message) is BrokerMessage or name in BrokerMessage.__dataclass_fields__:
        raise FrozenInstanceError(
            f"{name} of a message cannot be changed: all watchers see the same"
        )


BrokerMessage.__setattr__ = _set  # type: ignore[assignment,method-assign]
BrokerMessage.__delattr__ = _delete  # type: ignore[assignment,method-assign]

# What is decoded later is kept with the message, although that is frozen.
_set_json: Final = vars(BrokerMessage)["_json"].__set__
_set_decoded: Final = vars(BrokerMessage)["_decoded"].__set__
