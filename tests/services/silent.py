"""A server that takes connections, and says nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream


@asynccontextmanager
async def open_silent_server() -> AsyncIterator[int]:
    """Run the server on loopback until the block ends, and yield its port."""
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, _say_nothing)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def _say_nothing(stream: SocketStream) -> None:
    async with stream:
        await anyio.sleep_forever()
