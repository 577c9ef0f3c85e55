"""Frames, of JSON as a rule, between the service and the processes that run users' code, over a socket pair.

A child inherits one end and finds its number in the environment; its standard streams stay free for the user's code.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import anyio
import orjson
from anyio.abc import SocketAttribute, UNIXSocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

CHANNEL_VARIABLE: Final = "TRIGGERER_IPC_FD"
LIFELINE_VARIABLE: Final = "TRIGGERER_LIFELINE_FD"
_HEADER: Final = struct.Struct("!I")


class ChannelClosed(Exception):
    """The child has closed its end, or has died; or our end was closed.

    Args:
        unread: The child ended without having read everything that it was sent.
    """

    def __init__(self, *, unread: bool) -> None:
        super().__init__("the channel to a child process is closed")
        self.unread: Final = unread


def _frame(body: bytes) -> bytes:
    return _HEADER.pack(len(body)) + body


class Channel:
    """The service's end. One task may send while another receives."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._reader = BufferedByteReceiveStream(stream)
        self._sending = anyio.Lock()

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
        """As `send`, of something that is no JSON."""
        async with self._sending:
            try:
                await self._stream.send(_frame(body))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise ChannelClosed(unread=True) from error

    async def receive(self) -> Any:
        """Wait for one frame.

        Raises:
            ChannelClosed: None will come.
        Cancellation: A frame may be lost; nothing is to be received afterwards.
        """
        return orjson.loads(await self.receive_bytes())

    async def receive_bytes(self) -> bytes:
        """As `receive`, of something that is no JSON."""
        try:
            (size,) = _HEADER.unpack(await self._reader.receive_exactly(_HEADER.size))
            return await self._reader.receive_exactly(size)
        except (
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
        ) as error:
            # Linux resets the connection if the peer closed its end with data left to read.
            unread = isinstance(error.__cause__, ConnectionResetError)
            raise ChannelClosed(unread=unread) from error

    def shut_down(self) -> None:
        """Let nothing more come than what was sent, even if a process still holds the other end; repeatable."""
        ours = self._stream.extra(SocketAttribute.raw_socket)
        if ours.fileno() != -1:
            ours.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        await self._stream.aclose()


class ChildChannel:
    """The child's end: blocking, for one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._file = sock.makefile("rb")

    def fileno(self) -> int:
        """For `select`. Says nothing of frames that arrived together with the last one received."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        self.send_bytes(orjson.dumps(message))

    def send_bytes(self, body: bytes) -> None:
        self._socket.sendall(_frame(body))

    def receive(self) -> Any:
        """Wait for one frame.

        Raises:
            EOFError: The service is gone; the child has nothing left to do.
        """
        return orjson.loads(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """As `receive`, of something that is no JSON."""
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise EOFError("the service closed the channel")
        (size,) = _HEADER.unpack(header)
        body = self._file.read(size)
        if len(body) < size:
            raise EOFError("the service closed the channel in the middle of a frame")
        return body

    def close(self) -> None:
        self._file.close()
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
    """Return the channel to the parent; from now on this process dies with it, see `die_with_parent`.

    For a process that `triggerer.child_process` has started, once. The two descriptors are removed from the
    environment and not inherited by what this process starts.
    """
    die_with_parent(int(os.environ.pop(LIFELINE_VARIABLE)))
    channel = socket.socket(fileno=int(os.environ.pop(CHANNEL_VARIABLE)))
    channel.set_inheritable(False)
    return ChildChannel(channel)


def die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process, and all that it started, when its parent is gone.

    At once and without our help: the user's code may hold the interpreter's lock just then. A
    parent-death signal would reach this process alone, and leave behind what it has started.

    Args:
        lifeline: The reading end of a pipe that the parent never writes to. This process leads its group.
    """
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        # Readable before the signal was set up: the other end is closed already.
        if os.read(lifeline, 1) == b"":
            kill_own_group()


def kill_own_group() -> None:
    """Kill this process and all that it started; it leads its group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
