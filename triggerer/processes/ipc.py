"""Length-prefixed frames, of JSON as a rule, between the service and its child processes, over a socket pair.

A child inherits one end and finds its descriptor's number in the environment. Its standard streams stay free for
users' code.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from io import TextIOWrapper
from types import TracebackType
from typing import Any, Final, Self

import anyio
import orjson
from anyio.abc import SocketAttribute, UNIXSocketStream

from triggerer.processes.lifelines import die_with_writer, open_again

CHANNEL_VARIABLE: Final = "TRIGGERER_IPC_FD"
LIFELINE_VARIABLE: Final = "TRIGGERER_LIFELINE_FD"
_HEADER: Final = struct.Struct("!4sI")
# What others write into the channel does not begin with it.
_MAGIC: Final = b"\xf7TRG"
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
"""Far above what a run of a hundred thousand events reports."""
_AT_ONCE: Final = 64 * 1024
_STALL_S: Final = 60.0
"""Of a frame that has begun nothing has come for so long: the rest will not come."""


class ChannelClosed(Exception):
    """The child has closed its end, or has died; or our end was closed.

    Args:
        unread: The child ended without having read everything that it was sent.
    """

    def __init__(self, *, unread: bool) -> None:
        super().__init__("the channel to a child process is closed")
        self.unread: Final = unread


class MalformedFrame(ChannelClosed):
    """The child has sent what is no frame, or none that it may send: nothing that follows can be told apart.

    Whoever gets it ends the child.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(unread=False)
        self.reason: Final = reason

    def __str__(self) -> str:
        return f"what came from a child process cannot be understood: {self.reason}"


class FrameTooLarge(ValueError):
    """A message is larger than a frame may be; nothing was sent."""


def _frame(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(
            f"a message of {len(body):,} bytes is more than the {MAX_FRAME_BYTES:,} that may be sent at once"
        )
    return _HEADER.pack(_MAGIC, len(body)) + body


def _size_in(header: bytes) -> int:
    """Return the size of the frame that follows.

    Raises:
        MalformedFrame: It is no header, or says more than a frame may have.
    """
    magic, size = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise MalformedFrame(f"no frame begins with {header!r}")
    if size > MAX_FRAME_BYTES:
        raise MalformedFrame(f"a frame of {size:,} bytes")
    return int(size)


def _cut_off(received: bytearray, size: int) -> bytes:
    """Take the first bytes away, and return them."""
    with memoryview(received) as view:
        taken = bytes(view[:size])
    del received[:size]
    return taken


def _decoded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedFrame(f"it is no JSON: {error}") from error


class Channel:
    """The service's end. One task may send while another receives."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._sending = anyio.Lock(fast_acquire=True)

    @classmethod
    async def open(cls) -> tuple[Channel, socket.socket]:
        """Return our end and the socket that the child inherits; close the latter once the child is started."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        return cls(await UNIXSocketStream.from_socket(ours)), theirs

    async def send(self, message: Any) -> None:
        """Send one frame.

        Raises:
            ChannelClosed: The child cannot be reached.
        """
        await self.send_bytes(orjson.dumps(message))

    async def send_bytes(self, body: bytes) -> None:
        """Like `send`, for bytes that are not JSON."""
        async with self._sending:
            try:
                await self._stream.send(_frame(body))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise ChannelClosed(unread=True) from error

    async def receive(self) -> Any:
        """Wait for one frame.

        Raises:
            ChannelClosed: None will come.
            MalformedFrame: What came is none, or only a part of one.
        Cancellation: A frame may be lost; nothing is to be received afterwards.
        """
        return _decoded(await self.receive_bytes())

    async def receive_bytes(self) -> bytes:
        """Like `receive`, for bytes that are not JSON."""
        received = self._received
        try:
            if not received:
                received += await self._stream.receive()
            await self._await(_HEADER.size)
            size = _size_in(_cut_off(received, _HEADER.size))
            await self._await(size)
            return _cut_off(received, size)
        except (
            anyio.EndOfStream,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
        ) as error:
            # Linux resets the connection if the peer closed its end with data left to read.
            unread = isinstance(error.__cause__, ConnectionResetError)
            raise ChannelClosed(unread=unread) from error

    def has_more(self) -> bool:
        """Whether something has come that was not received yet."""
        if self._received:
            return True
        try:
            ours = self._stream.extra(SocketAttribute.raw_socket)
            return bool(ours.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            # Nothing, or the channel is closed: whoever receives is told.
            return False

    async def _await(self, size: int) -> None:
        """Wait until so many bytes of a frame that has begun are there."""
        received = self._received
        while (there := len(received)) < size:
            with anyio.move_on_after(_STALL_S) as patience:
                received += await self._stream.receive()
            if patience.cancelled_caught:
                raise MalformedFrame(
                    f"of a frame of {size:,} bytes {there:,} came, and nothing more for {_STALL_S:g} s"
                )

    def shut_down(self) -> None:
        """Receive only what was sent already, even if some process still holds the other end. May be repeated."""
        ours = self._stream.extra(SocketAttribute.raw_socket)
        if ours.fileno() != -1:
            ours.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        await self._stream.aclose()


class ChildChannel:
    """The child's end: blocking, for one thread that receives; who sends from several takes turns."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = bytearray()

    def fileno(self) -> int:
        """For `select`, which does not see frames that arrived together with the last one received."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        self.send_bytes(orjson.dumps(message))

    def send_bytes(self, body: bytes) -> None:
        self._socket.sendall(_frame(body))

    def receive(self) -> Any:
        """Wait for one frame.

        Raises:
            EOFError: The service has closed the channel, or is gone; or somebody else has read from it.
        """
        try:
            return _decoded(self.receive_bytes())
        except MalformedFrame as error:
            raise EOFError(str(error)) from error

    def receive_bytes(self) -> bytes:
        """Like `receive`, for bytes that are not JSON."""
        try:
            size = _size_in(self._receive(_HEADER.size))
        except MalformedFrame as error:
            raise EOFError(str(error)) from error
        return self._receive(size, has_begun=True)

    def _receive(self, size: int, *, has_begun: bool = False) -> bytes:
        received = self._received
        while len(received) < size:
            if not (part := self._socket.recv(_AT_ONCE)):
                where = " in the middle of a frame" if has_begun or received else ""
                raise EOFError(f"the service closed the channel{where}")
            received += part
        return _cut_off(received, size)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect_to_parent() -> ChildChannel:
    """Return the channel to the parent, arm each lifeline, and have what is printed be UTF-8, as the parent reads it.

    A process that `triggerer.processes.child_process` has started calls this first, and once. Its own children
    inherit none of the descriptors.
    """
    for stream in (sys.stdout, sys.stderr):
        # Of another locale, or with PYTHONIOENCODING, a task would fail that prints what its encoding lacks.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    own, *shared = map(int, os.environ.pop(LIFELINE_VARIABLE).split(","))
    die_with_writer(own)
    for lifeline in shared:
        # Who gets the signal belongs to the open file, not to the descriptor: with the one that was inherited, it would
        # be the last process that asked for it.
        die_with_writer(open_again(f"/proc/self/fd/{lifeline}"))
        os.close(lifeline)
    channel = socket.socket(fileno=int(os.environ.pop(CHANNEL_VARIABLE)))
    channel.set_inheritable(False)
    return ChildChannel(channel)
