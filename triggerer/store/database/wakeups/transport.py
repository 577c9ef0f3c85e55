"""Carries announcements to other processes: with NOTIFY on PostgreSQL, over a Unix socket beside a SQLite file."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import anyio
import orjson
from sqlalchemy import URL

from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.sqlite.file import beside
from triggerer.store.database.wakeups.signals import ALL, Announced, Signal, Wakeups

_log = LazyLogger(__name__)

CHANNEL: Final = "triggerer"
"""The channel of NOTIFY. PostgreSQL delivers a notification only within its database, so all databases use one name."""

# NOTIFY takes less than 8000 bytes. A datagram could be longer, but one limit is enough.
MAX_PAYLOAD: Final = 7_900
_SEND_TIMEOUT_S: Final = 1.0
# sun_path takes 108 bytes, including the final zero.
_MAX_SOCKET_PATH: Final = 107


class AnnouncementTransport:
    """Encodes and decodes announcements, and sends them on SQLite.

    On PostgreSQL each transaction sends its own announcements with NOTIFY.
    """

    def __init__(self, url: URL) -> None:
        self.sender: Final = uuid4().hex
        """The id by which this process recognises its own announcements."""
        sqlite = url.get_backend_name() == "sqlite"
        self.socket_path: Final = beside(url.database or "", ".wake") if sqlite else None
        """The socket on which `triggerer standalone` listens, beside the SQLite file; None for PostgreSQL."""
        self.is_listening = False
        """True if this process listens on the socket itself, so that it need not send. `listen` sets it."""

    def encode(self, announced: Announced) -> str:
        """Return an announcement as JSON text. If it is too long for NOTIFY, `ALL` replaces the subjects."""
        message: dict[str, str | list[str]] = {"from": self.sender}
        message.update({signal.value: list(subjects) for signal, subjects in announced.items()})
        body = orjson.dumps(message)
        if len(body) > MAX_PAYLOAD:
            body = orjson.dumps(
                {"from": self.sender, **{signal.value: [ALL] for signal in announced}}
            )
        return body.decode()

    def receive(self, message: str | bytes, wakeups: Wakeups) -> None:
        """Publish another process's announcement as wake-ups, and ignore this process's own announcements.

        At each commit, `Database` has already published this process's announcement.
        """
        try:
            fields = orjson.loads(message)
            if fields.pop("from", None) == self.sender:
                return
            for name, subjects in fields.items():
                wakeups.publish(Signal(name), *map(str, subjects))
        except (ValueError, AttributeError, TypeError):
            # The message came from another release, or from another program on this channel. It may announce any
            # change, so wake all subscribers.
            _log.warning("an announcement could not be read", message=str(message)[:200])
            wakeups.publish_everything()

    async def send(self, announced: Announced) -> None:
        """Send an announcement to the `triggerer standalone` on this SQLite database. On PostgreSQL, do nothing."""
        if self.socket_path is None or self.is_listening or not announced:
            return
        payload = self.encode(announced).encode()
        with datagram_socket() as sender, short_path(self.socket_path) as address:
            # The commit is done, so shield the sending. If a cancellation were raised here, the caller would believe
            # that the transaction was rolled back.
            with anyio.move_on_after(_SEND_TIMEOUT_S, shield=True) as scope:
                while True:
                    try:
                        sender.sendto(payload, address)
                        return
                    except BlockingIOError:
                        await anyio.wait_writable(sender)
                    except OSError:
                        # Nobody listens. A standalone that is starting will read the database once it listens.
                        return
            if scope.cancelled_caught:
                _log.warning(
                    "the standalone did not take a wake-up; its sweep will find the change"
                )


@contextmanager
def datagram_socket() -> Iterator[socket.socket]:
    """Yield a non-blocking socket, which is closed at the end of the block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        yield sock


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield another path of the same file, short enough for a socket address. This path is valid within the block."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
