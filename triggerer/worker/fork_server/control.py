"""The connection between the fork server and each of its children.

A run's process sends:

- `accepted`: the process has an order. The message carries the descriptor of the run's log.
- `attached`: the process has attached to the Spark driver of the server's message `driver`.
- `unusable`: a Spark driver is broken, so no other process may attach to it.
- `open`: a request for a driver.
- `how_ended`: a question about a driver: has it ended, and how?
- `file_seen`: the state of a DAG file that does not load, or lacks the run's DAG. Later processes receive the state.
- `owns`: a folder that must be removed after the process has ended.
- `imported`: modules that later runs may need.
- `finished`: the process ends now.

The process that opens a driver sends `started` (the JVM's process id) and `output` (a request for the JVM's output). In
the end it sends `opened` or `failed`.

The fork server sends:

- `go`: all processes of the previous run are gone, so this process may accept an order.
- `driver`: attach to this Spark driver.
- `leave`: the process must end if it has no order yet. A process with an order ignores the request.
- `reply`: the answer to `open`, `how_ended` or `output`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import orjson

_LONGEST: Final = 180_000
"""The most bytes of a message. The kernel's limit for this kind of socket is a little higher."""
_DESCRIPTORS_AT_ONCE: Final = 4


class Message(NamedTuple):
    """A message with its descriptors, which the receiver must close."""

    kind: str
    fields: dict[str, Any]
    descriptors: list[int]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Control:
    """One end of the connection. Its socket (`SOCK_SEQPACKET`) sends each message whole."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, *, descriptors: Sequence[int] = (), **fields: Any) -> bool:
        """Send a message. Return False if the other end is closed.

        The call blocks while the socket's buffer is full.

        Raises:
            ValueError: The message is too long.
        """
        body = orjson.dumps([kind, fields])
        if len(body) > _LONGEST:
            raise ValueError(f"a message of {len(body):,} bytes is too long")
        try:
            if descriptors:
                socket.send_fds(self._socket, [body], descriptors)
            else:
                self._socket.send(body)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            return False
        return True

    def receive(self) -> Message | None:
        """Wait for a message; None: the other end is closed."""
        try:
            body, descriptors, _, _ = socket.recv_fds(self._socket, _LONGEST, _DESCRIPTORS_AT_ONCE)
        except ConnectionResetError:
            return None
        if not body:
            return None
        try:
            kind, fields = orjson.loads(body)
            return Message(str(kind), dict(fields), list(descriptors))
        except (ValueError, TypeError):
            # Users' code has written into the connection, probably by accident. Return a message with an empty kind,
            # which the fork server refuses.
            return Message("", {}, list(descriptors))

    def close(self) -> None:
        self._socket.close()
