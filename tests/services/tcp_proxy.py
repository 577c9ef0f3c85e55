"""A TCP proxy on loopback whose connections can be cut: with a reset, or in silence."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

_CHUNK = 65_536


class TcpProxy:
    """A proxy that forwards connections to a port of 127.0.0.1, from a port of its own.

    Attributes:
        port: The port where the proxy listens.
        sent: The number of reads from clients. If a client pauses between small requests, each request is one read.
        connections: The number of connections that clients have opened, including refused connections.
    """

    port: int
    sent: int = 0
    connections: int = 0

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._passes = asyncio.Event()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def _start(self) -> None:
        self._passes.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        opened = {writer}
        self._writers.add(writer)
        try:
            if self._refuses:
                return
            await self._passes.wait()
            target, to_target = await asyncio.open_connection("127.0.0.1", self._target)
            opened.add(to_target)
            self._writers.add(to_target)
            directions = [
                asyncio.ensure_future(self._forward(reader, to_target, counts=True)),
                asyncio.ensure_future(self._forward(target, writer)),
            ]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
        except OSError:
            # The server is unreachable: close the client's connection, so that it notices.
            return
        finally:
            for one in opened:
                self._writers.discard(one)
                one.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool = False
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK):
                self.sent += counts
                await self._passes.wait()
                writer.write(chunk)
                await writer.drain()

    def _call(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        self._run(run())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def lead_to(self, target: int) -> None:
        """Forward new connections to another port. Open connections keep their port."""

        def change() -> None:
            self._target = target

        self._call(change)

    def silence(self) -> None:
        """Forward nothing, silently: sent bytes wait, and new connections get no answer."""
        self._call(self._passes.clear)

    def refuse(self) -> None:
        """Reset all connections, and each new one."""
        self._call(self._refuse)

    def _refuse(self) -> None:
        self._refuses = True
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """Forward again; the bytes that waited arrive now."""
        self._call(self._heal)

    def _heal(self) -> None:
        self._refuses = False
        self._passes.set()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._refuse()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            # The tasks should end soon, because their connections are gone. asyncio logs each task that is cancelled.
            await asyncio.wait(others, timeout=1.0)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Forward in a separate thread until the block ends."""
        thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        thread.start()
        self._run(self._start())
        try:
            yield
        finally:
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(30)
            self._loop.close()


@contextlib.contextmanager
def open_tcp_proxy(target: int) -> Iterator[TcpProxy]:
    """Run a proxy to a port of 127.0.0.1 in a thread of its own until the block ends."""
    proxy = TcpProxy(target)
    with proxy.serving():
        yield proxy
