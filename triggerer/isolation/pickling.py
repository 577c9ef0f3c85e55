"""Pickles the messages between the service and a trigger's process."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from triggerer.errors import PluginError
from triggerer.isolation.messages import Command, Derived, RawEvents, Report
from triggerer.observability.redaction import hide_known

M = TypeVar("M", bound=Command | Report)


MOST_PACKED_BYTES: Final = 128 * 1024 * 1024
"""128 MiB: the largest raw event or payload. A frame with one such event stays below the limit of the channel."""
FRAME_BYTES: Final = 16 * 1024 * 1024
"""16 MiB: a frame ends with the message that brings it to this size."""
_MOST_TEXT: Final = 1024 * 1024
"""The most characters of an error's text and of its traceback.

Also the most bytes of a pickled error.
"""


def pack(value: Any, *, name: str, what: str) -> bytes:
    """Pickle `value`.

    Raises:
        PluginError: The value cannot be pickled, or is too large. The message names the trigger and the value's class.
    """
    try:
        packed = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # `__reduce__` may raise anything
        raise PluginError(
            f"{what} of {name} ({type(value).__qualname__}) cannot be handed to another process: {error}",
            hint='isolate the trigger as "thread" instead of "process"',
        ) from error
    if len(packed) > MOST_PACKED_BYTES:
        raise PluginError(
            f"{what} of {name} ({type(value).__qualname__}) has {len(packed):,} bytes,"
            f" more than the {MOST_PACKED_BYTES:,} that may be handed to another process",
            hint='isolate the trigger as "thread" instead of "process"',
        )
    return packed


def unpack(packed: bytes, *, name: str, what: str) -> Any:
    """Return the value that `pack` has pickled.

    Raises:
        PluginError: The value's class cannot be imported here, or refuses the pickled state.
    """
    try:
        return pickle.loads(packed)
    except Exception as error:  # importing or making the value may raise anything
        raise PluginError(
            f"{what} of {name} cannot be unpickled by the receiving process: {type(error).__name__}: {error}",
            hint='isolate the trigger as "thread" instead of "process"',
        ) from error


class PackedError(NamedTuple):
    """An exception in a form that can be sent.

    The exception's text and traceback are always sent, without secrets. The exception itself is sent too if it can be
    pickled and unpickled, is small enough, and has no secret in its text.
    """

    pickled: bytes | None
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> PackedError:
        # Hide secrets before sending: the other process cannot recognise secrets that only this process has read.
        original = f"{type(error).__name__}: {error}"
        text = hide_known(original)
        trace = hide_known("".join(traceback.format_exception(error)))
        if text != original:
            return cls(None, text[:_MOST_TEXT], trace[-_MOST_TEXT:])
        try:
            pickled = pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL)
            pickle.loads(pickled)
        except Exception:  # noqa: BLE001  (raised by the exception's own code: then its text is sent)
            pickled = None
        if pickled is not None and len(pickled) > _MOST_TEXT:
            pickled = None
        return cls(pickled, text[:_MOST_TEXT], trace[-_MOST_TEXT:])

    def unpack(self) -> Exception:
        """Return the error or, if it was not sent or cannot be unpickled, a `PluginError` with its text.

        A note on the returned error has the traceback from the other process.
        """
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


def in_frames(messages: Sequence[M]) -> Iterator[list[M]]:
    """Divide messages among frames of about `FRAME_BYTES`, in order."""
    frame: list[M] = []
    size_bytes = 0
    for message in messages:
        frame.append(message)
        size_bytes += _size_of(message)
        if size_bytes >= FRAME_BYTES:
            yield frame
            frame, size_bytes = [], 0
    if frame:
        yield frame


def _size_of(message: Command | Report) -> int:
    """Return the size in bytes of the events or the payload in a message. The rest of a message is small."""
    if isinstance(message, RawEvents):
        return sum(map(len, message.events))
    return message.size_bytes if isinstance(message, Derived) else 0


def to_frame(messages: Sequence[Command | Report]) -> bytes:
    """Pickle these messages. Events and payloads are packed already; exceptions are packed here."""
    sent: list[Any] = []
    for message in messages:
        error = getattr(message, "error", None)
        sent.append(message if error is None else _WithError(type(message), PackedError.of(error)))
    return pickle.dumps(sent, protocol=pickle.HIGHEST_PROTOCOL)


def from_frame(frame: bytes) -> list[Any]:
    """Return the messages in a frame that `to_frame` has made.

    Raises:
        TypeError: An object in the frame is no message.
        Exception: Unpickling raised this error.
    """
    messages = [
        message.kind(message.error.unpack()) if isinstance(message, _WithError) else message
        for message in pickle.loads(frame)
    ]
    for message in messages:
        if not isinstance(message, Command | Report):
            raise TypeError(f"{type(message).__qualname__} is no message")
    return messages
