"""The process of the test Service Bus.

Run with `python -m tests.services.brokers.servicebus.server AMQP_PORT CONTROL_PORT [FILE]`. With a file, the entities'
messages are written to it on SIGTERM, and read from it at the start.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from tests.services.brokers.servicebus.claims import Tokens
from tests.services.brokers.servicebus.connection import Peer
from tests.services.brokers.servicebus.control import Control
from tests.services.brokers.servicebus.entities import Entity, Namespace, Refused


class Server:
    """All connections, the entities that they share, and one timer for everything that expires."""

    def __init__(self) -> None:
        self.namespace = Namespace(self._changed)
        self.tokens = Tokens()
        self.peers: set[Peer] = set()
        self.operations: Counter[str] = Counter()
        self.held_back: set[str] = set()
        self.failing_settlements = 0
        self.refuses_connections = False
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # Calls of connections

    def count(self, operation: str) -> None:
        self.operations[operation] += 1

    def holds_back(self, entity: Entity) -> bool:
        """Return whether a test has stopped the delivery from this entity."""
        return entity.path.lower() in self.held_back

    def fail_settlement(self, entity: Entity) -> None:
        if self.failing_settlements:
            self.failing_settlements -= 1
            raise Refused("com.microsoft:message-lock-lost", "The lock supplied is invalid.")

    def wake_at(self, moment: float) -> None:
        """Call `on_timer` at this time (seconds since the epoch), or earlier."""
        if self._timer is not None and self._timer_at <= moment:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, moment - time.time()) + 0.002
        self._timer_at = moment
        self._timer = asyncio.get_running_loop().call_later(delay, self.on_timer)

    def on_timer(self) -> None:
        self._timer = None
        lost = [holder for entity in self.namespace.all() for holder in entity.expire()]
        for peer in self.peers:
            if lost:
                peer.lose_sessions(lost)
            peer.enforce()
            peer.wake()
        ends = [end for entity in self.namespace.all() if (end := entity.next_expiry()) is not None]
        ends += [one.until for peer in self.peers for one in peer.waiting]
        now = time.time()
        ends += [until for peer in self.peers for until in peer.claims.values() if until > now]
        if ends:
            self.wake_at(min(ends))

    def _changed(self, _: Entity) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.wake)

    def wake(self) -> None:
        """Make every connection send the messages that have become available."""
        self._is_due = False
        for peer in list(self.peers):
            peer.wake()

    async def tick(self) -> None:
        """Send empty frames to clients that have asked for heartbeats, until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            for peer in list(self.peers):
                peer.tick()

    # Serving

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses_connections:
            writer.transport.abort()
            return
        peer = Peer(self, reader, writer)
        self.peers.add(peer)
        try:
            await peer.serve()
        finally:
            self.peers.discard(peer)
            peer.end()

    def cut_off(self) -> None:
        """Cut all connections, and refuse new ones."""
        self.refuses_connections = True
        for peer in list(self.peers):
            peer.cut()


def _keep(server: Server, file: Path) -> None:
    # After this line the server confirms nothing, so the file contains everything that was confirmed.
    server.cut_off()
    file.write_bytes(pickle.dumps(server.namespace.snapshot()))
    os._exit(0)


async def main(amqp_port: int, control_port: int, file: Path | None) -> None:
    server = Server()
    control = Control(server)
    if file is not None:
        if file.exists():
            server.namespace.restore(pickle.loads(file.read_bytes()))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _keep, server, file)
    async with (
        await asyncio.start_server(server.serve, "127.0.0.1", amqp_port) as amqp,
        await asyncio.start_server(control.serve, "127.0.0.1", control_port, limit=2**26) as orders,
    ):
        await asyncio.gather(amqp.serve_forever(), orders.serve_forever(), server.tick())


if __name__ == "__main__":
    asyncio.run(
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
    )
