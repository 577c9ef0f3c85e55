"""Connections that send nothing, and more connections than the API takes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.api.conftest import Api
from triggerer.api import connections
from triggerer.api.connections import BoundedProtocol
from triggerer.api.serving import serve


@asynccontextmanager
async def served(api: Api) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, api.context.settings, api.database, listener)
            await anyio.lowlevel.checkpoint()
            yield f"http://127.0.0.1:{port}"
            tasks.cancel_scope.cancel()


async def status(address: str) -> int | None:
    async with httpx.AsyncClient() as client:
        try:
            return (await client.get(f"{address}/api/v1/openapi.json")).status_code
        except httpx.HTTPError:
            return None


async def test_a_connection_too_many_is_closed_and_a_closed_one_makes_room(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    async with served(api) as address:
        host, port = "127.0.0.1", int(address.rpartition(":")[2])
        assert await status(address) == 200
        silent = [await anyio.connect_tcp(host, port) for _ in range(5)]
        while BoundedProtocol.open_now < 5:  # noqa: ASYNC110 (uvicorn tells nobody)
            await anyio.sleep(0.01)
        assert await status(address) is None
        for one in silent:
            await one.aclose()
        while BoundedProtocol.open_now:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        assert await status(address) == 200


@pytest.mark.parametrize("sent", [b"", b"GET /api/v1/dags HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_a_connection_without_a_whole_request_is_closed_in_time(
    api: Api, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.2)
    ended = (anyio.EndOfStream, anyio.BrokenResourceError)
    async with (
        served(api) as address,
        await anyio.connect_tcp("127.0.0.1", int(address.rpartition(":")[2])) as stream,
    ):
        if sent:
            await stream.send(sent)
        with anyio.fail_after(5), pytest.raises(ended):
            await stream.receive()
