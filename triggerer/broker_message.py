"""A message as filters see it, whatever broker it is from."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar, dataclass_transform

import orjson

_T = TypeVar("_T")

_NOT_DECODED: Final = object()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _read_only(cls: type[_T]) -> type[_T]:
    """A dataclass that type checkers take for a frozen one.

    A frozen one sets each field by a call of a method, which takes most of the time in which a message is made.
    """
    return dataclass(slots=True)(cls)


@_read_only
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

    def decoded(self, name: str, decode: Callable[[BrokerMessage], Any]) -> Any:
        """Return what `decode` makes of the message: computed for whoever asks first, and kept under `name`.

        It is shared by all subscribers of the stream: do not change it. Where `decode` raises, nothing is kept.
        """
        kept = self._decoded
        if kept is None:
            kept = self._decoded = {}  # type: ignore[misc]
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
            self._json = decoded  # type: ignore[misc]
        return decoded

    def forget_decoded(self) -> None:
        """Decode it anew when it is asked for again. Called first where a subclass does without the constructor."""
        self._json, self._decoded = _NOT_DECODED, None  # type: ignore[misc]

    def __repr__(self) -> str:
        """Where it has its place, and how large it is; not what is in it, which may be long or nobody's business."""
        place = " ".join(f"{name}={value}" for name, value in self.position.items())
        return f"<{type(self).__name__} {place} of {len(self.value or b'')} bytes>"

    # Pickled for a filter in another process: without what was decoded.

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _MESSAGE_STATE)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(_MESSAGE_STATE, state, strict=True):
            setattr(self, name, value)
        self.forget_decoded()


_MESSAGE_STATE: Final = (
    "value",
    "key",
    "attributes",
    "position",
    "published_at",
    "deliveries",
)
