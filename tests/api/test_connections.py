"""Connections that send nothing or send slowly, and more connections than the API takes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.abc import SocketStream

from tests.api.conftest import Api
from triggerer.api import connections
from triggerer.api.connections import BoundedProtocol
from triggerer.api.routes.logs import MOST_BYTES
from triggerer.api.serving import serve
from triggerer.domain.run_logs import log_path
from triggerer.store.database.wakeups.signals import Signal


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


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


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
        host, port = "127.0.0.1", port_of(address)
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


async def receive_head(stream: SocketStream) -> None:
    """Receive the head of an answer without a body, or with a body that arrives together with the head."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += await stream.receive()


async def trickle(stream: SocketStream) -> None:
    """Send a byte every 50 ms until the connection is closed."""
    with suppress(anyio.BrokenResourceError):
        while True:
            await stream.send(b"x")
            await anyio.sleep(0.05)


LINE = b"GET /api/v1/dags HTTP/1.1\r\n"
WHOLE = LINE + b"Host: 127.0.0.1\r\n\r\n"
LONG_HEADER = LINE + b"X-Long: "
REFUSED_BODY = (
    b"POST /api/v1/dags/daily/dagRuns HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000\r\n\r\n"
)
AWAITED_BODY = REFUSED_BODY.replace(b"dags/daily/dagRuns", b"events/hook")
CHUNKED_BODY = (
    AWAITED_BODY.replace(b"Content-Length: 9000", b"Transfer-Encoding: chunked") + b"1000\r\n"
)


@pytest.mark.parametrize(
    "sent",
    [b"", LONG_HEADER, REFUSED_BODY, AWAITED_BODY, CHUNKED_BODY],
    ids=["nothing", "head", "refused-body", "awaited-body", "chunked-body"],
)
@pytest.mark.parametrize("before", ["first", "after-an-answer", "pipelined"])
async def test_a_connection_whose_request_does_not_arrive_in_time_is_closed(
    api: Api, monkeypatch: pytest.MonkeyPatch, sent: bytes, before: str
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(connections, "BODY_S", 0.3)
    async with (
        served(api) as address,
        await anyio.connect_tcp("127.0.0.1", port_of(address)) as stream,
        anyio.create_task_group() as tasks,
    ):
        if before == "after-an-answer":
            await stream.send(WHOLE)
            await receive_head(stream)
        elif before == "pipelined":
            sent = WHOLE + sent
        if sent:
            await stream.send(sent)
            tasks.start_soon(trickle, stream)
        with anyio.fail_after(5), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await stream.receive()
        tasks.cancel_scope.cancel()


async def test_answers_may_last_longer_than_requests(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(connections, "BODY_S", 0.3)
    log = Path(log_path(str(tmp_path), "daily", "manual__1"))
    log.write_bytes(bytes(MOST_BYTES))
    path = "/api/v1/dags/daily/dagRuns/manual__1/logs"
    headers = {"Authorization": f"Bearer {api.tokens['viewer']}"}
    async with (
        served(api) as address,
        httpx.AsyncClient(base_url=address, headers=headers) as client,
        client.stream("GET", path, params={"follow": True, "tail": 1}) as followed,
        client.stream("GET", "/api/v1/changes") as changes,
        client.stream("GET", path, params={"limit": MOST_BYTES}) as read_slowly,
    ):
        log_chunks, hints = followed.aiter_raw(), changes.aiter_raw()
        assert await anext(log_chunks) == b"\0"
        assert await anext(hints)
        await anyio.sleep(1)
        with anyio.fail_after(10):
            assert len(await read_slowly.aread()) == MOST_BYTES
            with log.open("ab") as file:
                file.write(b"more")
            assert await anext(log_chunks) == b"more"
            api.database.wakeups.publish(Signal.RUNS_QUEUED, "daily")
            assert b"daily" in await anext(hints)


async def test_a_body_that_takes_a_while_is_accepted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)

    async def body() -> AsyncIterator[bytes]:
        for part in (b'{"asset":', b'"orders",', b'"extra":', b'{"n": 1}}'):
            yield part
            await anyio.sleep(0.2)

    headers = {
        "Authorization": f"Bearer {api.tokens['operator']}",
        "Content-Type": "application/json",
    }
    async with served(api) as address, httpx.AsyncClient(base_url=address) as client:
        answer = await client.post("/api/v1/assets/events", content=body(), headers=headers)
        assert answer.status_code == 201, answer.text


async def connect_reading_little(address: str) -> socket.socket:
    """Return a connection whose receive buffer is small, so that the API soon has to wait for the client to read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port_of(address)))
    return client


async def send_all(client: socket.socket, data: bytes) -> None:
    """Send requests until the API closes the connection. The API does not read while its answers are not read."""
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(client, data)


def log_request(api: Api) -> bytes:
    token = api.tokens["viewer"]
    return (
        f"GET /api/v1/dags/daily/dagRuns/manual__1/logs?limit={MOST_BYTES} HTTP/1.1\r\n"
        f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("answers", ["many", "large"])
async def test_a_client_that_does_not_read_its_answers_is_disconnected(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: str
) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.5)
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    Path(log_path(str(tmp_path), "daily", "manual__1")).write_bytes(bytes(MOST_BYTES))
    requests = WHOLE * 20_000 if answers == "many" else log_request(api) * 10
    async with (
        served(api) as address,
        anyio.create_task_group() as tasks,
    ):
        with await connect_reading_little(address) as client:
            tasks.start_soon(send_all, client, requests)
            with anyio.fail_after(10):
                while not BoundedProtocol.open_now:  # noqa: ASYNC110 (uvicorn tells nobody)
                    await anyio.sleep(0.01)
                while BoundedProtocol.open_now:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


async def test_an_answer_that_is_read_slowly_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 1.0)
    Path(log_path(str(tmp_path), "daily", "manual__1")).write_bytes(bytes(MOST_BYTES))
    loop = asyncio.get_running_loop()
    async with served(api) as address:
        with await connect_reading_little(address) as client:
            await loop.sock_sendall(client, log_request(api) * 10)
            for _ in range(40):
                await anyio.sleep(0.1)
                assert await loop.sock_recv(client, 4096)
