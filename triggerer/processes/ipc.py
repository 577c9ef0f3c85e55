"""The channel between the service and a child process: frames over a socket pair. Most frames are JSON.

A frame is one message with its length before it. The child inherits one end of the socket pair, and finds the
descriptor's number in the environment. The child's standard streams stay free for users' code.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import deque
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
# The first bytes of a frame. If other code writes to the channel by mistake, its bytes will not begin like this.
_MAGIC: Final = b"\xf7TRG"
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
"""256 MiB: the largest frame. The report of a run with a hundred thousand events takes a small part of this."""
_AT_ONCE: Final = 64 * 1024
_DESCRIPTORS_AT_ONCE: Final = 16
_STALL_S: Final = 60.0
"""If a part of a frame has arrived, and then no byte for 60 s, the frame counts as malformed."""


class ChannelClosed(Exception):
    """The child closed its end of the channel or died, or our end was closed.

    Args:
        unread: True if the child ended without reading everything that was sent to it.
    """

    def __init__(self, *, unread: bool) -> None:
        super().__init__("the channel to a child process is closed")
        self.unread: Final = unread


class MalformedFrame(ChannelClosed):
    """The child sent bytes that are no frame, or a frame that it must not send. Later frames cannot be read.

    The receiver must end the child.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(unread=False)
        self.reason: Final = reason

    def __str__(self) -> str:
        return f"a child process sent data that cannot be understood: {self.reason}"


class FrameTooLarge(ValueError):
    """A message is too large for a frame. Nothing was sent."""


def _frame(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(
            f"a message of {len(body):,} bytes is too large for a frame, which has at most {MAX_FRAME_BYTES:,}"
        )
    return _HEADER.pack(_MAGIC, len(body)) + body


def _size_in(header: bytes) -> int:
    """Return the size in bytes of the frame's body, which follows the header.

    Raises:
        MalformedFrame: The bytes are no header, or the size exceeds the limit.
    """
    magic, size = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise MalformedFrame(f"no frame begins with {header!r}")
    if size > MAX_FRAME_BYTES:
        raise MalformedFrame(f"a frame of {size:,} bytes")
    return int(size)


def _cut_off(received: bytearray, size: int) -> bytes:
    """Remove the first bytes and return them."""
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
    """The service's end of a channel. One task can send while another task receives.

    Attributes:
        accepts_descriptors: Whether the child may send file descriptors with its frames. Set it only for a trusted
            child.
        descriptors: The descriptors that came with the received frames, in order. The receiver must close them.
    """

    def __init__(self, stream: UNIXSocketStream) -> None:
        self.accepts_descriptors = False
        self.descriptors: Final = deque[int]()
        self._stream = stream
        self._received = bytearray()
        self._sending = anyio.Lock(fast_acquire=True)

    @classmethod
    async def open(cls) -> tuple[Channel, socket.socket]:
        """Return our end, and the socket that the child inherits. Close that socket once the child has started."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        return cls(await UNIXSocketStream.from_socket(ours)), theirs

    @classmethod
    async def over(cls, descriptor: int) -> Channel:
        """Return the channel over a connected socket. Closing the channel closes the socket."""
        ours = socket.socket(fileno=descriptor)
        ours.set_inheritable(False)
        ours.setblocking(False)
        return cls(await UNIXSocketStream.from_socket(ours))

    async def send(self, message: Any) -> None:
        """Send one frame.

        Raises:
            ChannelClosed: The child cannot be reached.
        """
        await self.send_bytes(orjson.dumps(message))

    async def send_bytes(self, body: bytes) -> None:
        """Send one frame of bytes that are not JSON. Raises the errors of `send`."""
        async with self._sending:
            try:
                await self._stream.send(_frame(body))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise ChannelClosed(unread=True) from error

    async def receive(self) -> Any:
        """Wait for one frame.

        Raises:
            ChannelClosed: No further frame will come.
            MalformedFrame: The received bytes are no frame. Or a frame began, and then no byte came
                for 60 s.
        Cancellation: A frame may be lost. Do not receive afterwards.
        """
        return _decoded(await self.receive_bytes())

    async def receive_bytes(self) -> bytes:
        """Wait for one frame, and return its bytes. Raises the errors of `receive`."""
        received = self._received
        try:
            if not received:
                received += await self._receive_part()
            await self._await(_HEADER.size)
            size = _size_in(_cut_off(received, _HEADER.size))
            await self._await(size)
            return _cut_off(received, size)
        except (
            anyio.EndOfStream,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
        ) as error:
            # Linux resets the connection if the other side closes with unread data.
            unread = isinstance(error.__cause__, ConnectionResetError)
            raise ChannelClosed(unread=unread) from error

    async def _receive_part(self) -> bytes:
        if not self.accepts_descriptors:
            return await self._stream.receive()
        part, descriptors = await self._stream.receive_fds(_AT_ONCE, _DESCRIPTORS_AT_ONCE)
        self.descriptors.extend(descriptors)
        if not part:
            raise anyio.EndOfStream
        return part

    async def _await(self, size: int) -> None:
        """Wait until `size` bytes of the current frame have arrived."""
        received = self._received
        while (there := len(received)) < size:
            with anyio.move_on_after(_STALL_S) as patience:
                received += await self._receive_part()
            if patience.cancelled_caught:
                raise MalformedFrame(
                    f"only {there:,} of a frame's {size:,} bytes came, and nothing more for {_STALL_S:g} s"
                )

    def shut_down(self) -> None:
        """Stop the channel: only data that was already sent can be received. Can be repeated."""
        ours = self._stream.extra(SocketAttribute.raw_socket)
        if ours.fileno() != -1:
            ours.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.popleft())
        await self._stream.aclose()


class ChildChannel:
    """The child's end. Its methods block. Only one thread may receive, and threads that send must take turns."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = bytearray()

    @property
    def has_more(self) -> bool:
        """True if at least a part of the next frame was read together with the previous frame."""
        return bool(self._received)

    def fileno(self) -> int:
        """Return the descriptor for `select`. Check `has_more` first: `select` does not report data that was read."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        self.send_bytes(orjson.dumps(message))

    def send_bytes(self, body: bytes) -> None:
        self._socket.sendall(_frame(body))

    def send_descriptor(self, message: Any, descriptor: int) -> None:
        """Send a frame, and with it a copy of the descriptor. See `Channel.descriptors`."""
        frame = _frame(orjson.dumps(message))
        sent = socket.send_fds(self._socket, [frame], [descriptor])
        self._socket.sendall(frame[sent:])

    def receive(self) -> Any:
        """Wait for one frame.

        Raises:
            EOFError: The service closed the channel or is gone, or the received bytes are no frame. For example,
                another process with this channel has read the beginning of the frame.
        """
        try:
            return _decoded(self.receive_bytes())
        except MalformedFrame as error:
            raise EOFError(str(error)) from error

    def receive_bytes(self) -> bytes:
        """Wait for one frame, and return its bytes. Raises the errors of `receive`."""
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
    """Return the channel to the parent, and let this process die when the parent dies.

    A process that `ChildProcess` has started calls this function once, before anything else. Standard output and
    standard error become UTF-8, because the parent reads UTF-8. Programs that this process starts inherit neither the
    channel nor the lifelines.
    """
    for stream in (sys.stdout, sys.stderr):
        # Do not use the locale's encoding: a task would fail if it printed a character that this encoding lacks.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    own, *shared = map(int, os.environ.pop(LIFELINE_VARIABLE).split(","))
    die_with_writer(own)
    for lifeline in shared:
        # An open file description has one owner, which gets the signal (F_SETOWN in fcntl(2)). The inherited
        # description also serves other processes, so its owner must stay. Opening the pipe again creates a new
        # description.
        die_with_writer(open_again(f"/proc/self/fd/{lifeline}"))
        os.close(lifeline)
    channel = socket.socket(fileno=int(os.environ.pop(CHANNEL_VARIABLE)))
    channel.set_inheritable(False)
    return ChildChannel(channel)
