"""Pickles what passes between the service and a trigger's process."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from triggerer.errors import PluginError
from triggerer.isolation.messages import Command, Report


def pack(value: Any, *, name: str, what: str) -> bytes:
    """Pickle `value`.

    Raises:
        PluginError: It cannot be pickled; the message names the trigger and the value's class.
    """
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # `__reduce__` may raise anything
        raise PluginError(
            f"{what} of {name} ({type(value).__qualname__}) cannot be handed to another process: {error}",
            hint='isolate the trigger as "thread" instead of "process"',
        ) from error


def unpack(packed: bytes, *, name: str, what: str) -> Any:
    """Undo `pack`.

    Raises:
        PluginError: Its class cannot be imported here, or cannot be made from what was pickled.
    """
    try:
        return pickle.loads(packed)
    except Exception as error:  # whatever importing or making it raises
        raise PluginError(
            f"{what} of {name} cannot be read on the other side: {type(error).__name__}: {error}",
            hint='isolate the trigger as "thread" instead of "process"',
        ) from error


class PackedError(NamedTuple):
    """An exception as it is sent; only its text, if it cannot be pickled or would end the process that unpickles it."""

    pickled: bytes | None
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> PackedError:
        trace = "".join(traceback.format_exception(error))
        text = f"{type(error).__name__}: {error}"
        try:
            pickled = pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL)
            pickle.loads(pickled)
        except Exception:  # noqa: BLE001  (raised by the exception's own code: then its text is sent)
            pickled = None
        return cls(pickled, text, trace)

    def unpack(self) -> Exception:
        """Return the error, or a `PluginError` with its text; a note holds the traceback from the other process."""
        error = self._unpickled() or PluginError(self.text)
        error.add_note(f"In the other process:\n{self.trace}")
        return error

    def _unpickled(self) -> Exception | None:
        if self.pickled is None:
            return None
        try:
            found = pickle.loads(self.pickled)
        except Exception:  # noqa: BLE001  (its class cannot be imported here)
            return None
        return found if isinstance(found, Exception) else None


class _WithError(NamedTuple):
    """A message that carries an error."""

    kind: type[Any]
    error: PackedError


def to_frame(messages: Sequence[Command | Report]) -> bytes:
    """Pickle these messages. What a plugin put into them is packed already, except for its exceptions."""
    sent: list[Any] = []
    for message in messages:
        error = getattr(message, "error", None)
        sent.append(message if error is None else _WithError(type(message), PackedError.of(error)))
    return pickle.dumps(sent, protocol=pickle.HIGHEST_PROTOCOL)


def from_frame(frame: bytes) -> list[Any]:
    """Undo `to_frame`.

    Raises:
        Exception: Whatever unpickling raises; `TypeError`: it holds no messages.
    """
    messages = [
        message.kind(message.error.unpack()) if isinstance(message, _WithError) else message
        for message in pickle.loads(frame)
    ]
    for message in messages:
        if not isinstance(message, Command | Report):
            raise TypeError(f"{type(message).__qualname__} is no message")
    return messages
