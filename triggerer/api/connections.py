"""Limits the connections of the API: their number, and the time until a connection has sent its first request.

uvicorn itself does not limit connections that send nothing. So this module extends uvicorn's protocol class. A test
fails if a new version of uvicorn changes the parts of that class that this module uses.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 1_000
FIRST_REQUEST_S: Final = 15.0
"""A new connection that has not sent a request after this time is closed."""


class BoundedProtocol(H11Protocol):
    """One connection. It is closed if too many connections are open, or if it sends no request in time."""

    open_now: ClassVar[int] = 0
    _counts = False
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or close it at once."""
        if BoundedProtocol.open_now >= MOST_CONNECTIONS:
            transport.abort()
            return
        BoundedProtocol.open_now += 1
        self._counts = True
        super().connection_made(transport)
        self._patience = self.loop.call_later(FIRST_REQUEST_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Subtract the connection from the count."""
        if not self._counts:
            return
        self._counts = False
        BoundedProtocol.open_now -= 1
        self._stop_patience()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data. Once the head of a request has arrived, the connection has no time limit any longer."""
        if not self._counts:
            return
        super().data_received(data)
        if self._has_request():
            self._stop_patience()

    def _has_request(self) -> bool:
        # `cycle` may be None, but uvicorn's annotation does not say so.
        cycle: Any = self.cycle
        return cycle is not None

    def _give_up(self) -> None:
        if not self._has_request():
            self.transport.abort()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
