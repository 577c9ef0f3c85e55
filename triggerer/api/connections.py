"""Limits the connections of the API: their number, and the time that a client may take to send or to receive data.

uvicorn itself only limits the time until a client begins its next request. So this module extends uvicorn's protocol
class. The kernel closes a connection if its answer makes no progress for too long. A test fails if a new version of
uvicorn changes the parts of that class that this module uses.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 1_000
HEAD_S: Final = 15.0
"""How long a client may take to send the head of a request. The time begins when the API can receive the request: when
the connection is new, or when the previous request was answered.
"""
BODY_S: Final = 120.0
"""How long a client may take to send the body of a request after the head. A body of 8 MiB needs 0.6 Mbit/s."""
UNREAD_S: Final = 900.0
"""How long a client may leave data of an answer unread before its connection is closed.

This is as long as TCP repeats data that a client does not confirm. With a short time, the kernel would also close
connections of clients that read a few kB each second, or that sleep for a minute.
"""


def limit_unread(listener: socket.socket) -> None:
    """Let the kernel close accepted connections whose answers make no progress for `UNREAD_S`.

    An answer makes no progress while the client neither confirms data nor makes room for more data. Only the kernel
    sees each step of a slow client. A stream that has nothing to send has no limit.

    Source: TCP_USER_TIMEOUT in tcp(7). On Linux, accepted sockets inherit the option.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1_000))


class BoundedProtocol(H11Protocol):
    """One connection. It is closed if too many connections are open, or if a request does not arrive in time.

    The whole time of an answer is not limited, because a followed log may take an hour.
    """

    open_now: ClassVar[int] = 0
    _counts = False
    _awaited: tuple[Any, Any] | None = None
    """The part of a request that the client has to send now, with the request before it or the request itself."""
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or close it at once."""
        if BoundedProtocol.open_now >= MOST_CONNECTIONS:
            transport.abort()
            return
        BoundedProtocol.open_now += 1
        self._counts = True
        super().connection_made(transport)
        self._limit_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Subtract the connection from the count."""
        if not self._counts:
            return
        self._counts = False
        BoundedProtocol.open_now -= 1
        self._end_limit()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data, unless the connection was one too many."""
        if self._counts:
            super().data_received(data)

    def handle_events(self) -> None:
        """Handle the data that has arrived. uvicorn calls this after reading, and before it waits for a request."""
        super().handle_events()
        self._limit_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP with 400. If an answer has begun, only close the connection.

        uvicorn would then raise an error in the event loop, because h11 refuses a second answer.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _limit_reading(self) -> None:
        """Limit the time for the head or body that the client has to send now. Further bytes do not extend the time."""
        state = self.conn.their_state
        awaited = (state, self.cycle)
        if awaited == self._awaited:
            return
        self._awaited = awaited
        self._end_limit()
        seconds = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S}.get(state)
        if seconds is not None:
            # Close instead of abort: the end of the previous answer may still be on its way to a slow client. If the
            # client does not read it, `limit_unread` ends the connection.
            self._limit = self.loop.call_later(seconds, self.transport.close)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
