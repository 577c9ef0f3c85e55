"""The service manager's end of sd_notify(3)."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Self


class NotifySocket:
    """The datagram socket of a service manager, open within a `with` block.

    Args:
        address: The value of `NOTIFY_SOCKET`: a path, or `@` with an abstract name.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._bound = "\0" + address[1:] if address.startswith("@") else address

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._bound)
        self._socket.setblocking(False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        if not self.address.startswith("@"):
            Path(self.address).unlink()

    def read(self) -> list[list[str]]:
        """Return the lines of each datagram that has arrived since the last call."""
        datagrams = []
        while True:
            try:
                datagrams.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return datagrams

    def fill(self) -> None:
        """Fill the socket's buffer, so that no further datagram fits."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(self._bound)
            while True:
                try:
                    sender.send(b"X=1")
                except BlockingIOError:
                    return
