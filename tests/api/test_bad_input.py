"""Bad input over real sockets: bodies, heads and paths that are wrong, readers that are slow, and revoked tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import httpx
import pytest
from structlog.testing import capture_logs

from tests.actors import TESTER
from tests.api.conftest import Api
from tests.api.test_connections import served
from triggerer.api.routes import changes, logs
from triggerer.domain.run_logs import log_path
from triggerer.operations.access.tokens import revoke_token

V1 = "/api/v1"
LOGS = f"{V1}/dags/daily/dagRuns/manual__1/logs"
MIB = 1024 * 1024


def head(api: Api, request: str, *lines: str) -> bytes:
    """Return the head of a request with the administrator's token."""
    fixed = ("Host: 127.0.0.1", f"Authorization: Bearer {api.tokens['admin']}")
    return "\r\n".join((f"{request} HTTP/1.1", *fixed, *lines, "", "")).encode()


async def exchange(address: str, sent: bytes) -> bytes:
    """Send bytes and return the answer, up to the end of the connection or of the body."""
    host, port = address.removeprefix("http://").split(":")
    received = b""
    with anyio.fail_after(10):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            try:
                await stream.send(sent)
                while not _is_whole(received):
                    received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    return received


def _is_whole(received: bytes) -> bool:
    start, end, body = received.partition(b"\r\n\r\n")
    for line in start.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return bool(end) and len(body) >= int(line.partition(b":")[2])
    return False


JSON = "Content-Type: application/json"
CHUNK = b"10000\r\n" + b"x" * 65_536 + b"\r\n"


# The request, its header lines, its body, the status, and what the answer says.
REQUESTS = [
    ("POST /api/v1/assets/events", (JSON, f"Content-Length: {2 * MIB}"), b"x" * 2 * MIB, 413, "over the limit"),
    ("POST /api/v1/assets/events", (JSON, "Transfer-Encoding: chunked"), CHUNK * 32, 413, "over the limit"),
    # The API refuses by the length alone, without waiting for two gigabytes.
    ("POST /api/v1/assets/events", (JSON, f"Content-Length: {2048 * MIB}"), b"", 413, "over the limit"),
    ("POST /api/v1/assets/events", (JSON, "Content-Length: -1"), b"", 400, ""),
    ("POST /api/v1/assets/events", (JSON, "Content-Length: 5", "Content-Length: 6"), b"123456", 400, ""),
    ("POST /api/v1/assets/events", (JSON, "Transfer-Encoding: chunked"), b"zz\r\n", 400, ""),
    ("POST /api/v1/assets/events", (JSON, "Content-Length: 27"), b'{"asset":"orders","xtra":1}', 400, "`xtra`"),
    ("GET /api/v1/dags", ("X-Long: " + "x" * MIB,), b"", 400, ""),
    ("GET /api/v1/dags", ("Host: elsewhere.example",), b"", 400, ""),
    ("GET /api/v1/dags?q=" + "x" * 40_000, (), b"", 400, "length <= 500"),
    ("GET /api/v1/dags/a%2Fb", (), b"", 404, "'a/b'"),
    ("GET /api/v1/assets/x-test:%2F%2Forders", (), b"", 200, "x-test://orders"),
    ("GET /api/v1/assets/queuedEvent/x-test://orders", (), b"", 200, "daily"),
    ("GET /api/v1/dags/..%2F..%2Fetc%2Fpasswd", (), b"", 404, "../../etc/passwd"),
    ("GET /assets/..%2F..%2Fapp.py", (), b"", 200, "<noscript>"),
    ("GET /api/v1/dags/%3Cscript%3E", (), b"", 404, "<script>"),
    ("POST /api/v1/assets/events", (JSON, "Content-Length: 100000"), b"[" * 100_000, 400, "recursion depth"),
    ("POST /api/v1/assets/events", (JSON, "Content-Length: 7"), b'{"\xff":1}', 400, "cannot be read"),
    ("POST /api/v1/events?asset=orders", (JSON, "Content-Length: 100000"), b"[" * 100_000, 400, "no CloudEvent"),
]  # fmt: skip
NO_REQUESTS = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\0" * 70_000,
    b"GET /api/v1/dags HTTP/1.1\r\n\r\n",
]


async def test_each_wrong_request_gets_a_clear_answer_and_the_next_client_is_served(
    api: Api,
) -> None:
    with capture_logs() as logged:
        await _send_all(api)
    assert [line for line in logged if line["log_level"] == "error"] == []


async def _send_all(api: Api) -> None:
    async with served(api) as address:
        for request, lines, body, status, said in REQUESTS:
            answer = await exchange(address, head(api, request, *lines) + body)
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (request, lines, answer)
            assert said.encode() in answer
            assert b"Traceback" not in answer
        for sent in NO_REQUESTS:
            answer = await exchange(address, sent)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), (sent[:50], answer)
        assert b"HTTP/1.1 200" in await exchange(address, head(api, "GET /api/v1/dags"))


UPGRADE = (
    b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)


async def test_a_client_cannot_fill_the_log_with_requests_that_are_no_http(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(api) as address:
        for sent in (*NO_REQUESTS, UPGRADE):
            await exchange(address, sent)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_body_that_is_no_http_ends_a_connection_whose_answer_has_begun(
    api: Api, caplog: pytest.LogCaptureFixture, is_streamed: bool
) -> None:
    request = head(api, "GET /api/v1/changes", "Transfer-Encoding: chunked")
    if not is_streamed:
        request = request.replace(b"/changes", b"/dags")
    async with served(api) as address:
        host, port = address.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(request)
            assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
            await stream.send(b"zz\r\n")
            with anyio.fail_after(10), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    assert b"HTTP/1.1" not in await stream.receive()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@asynccontextmanager
async def slow_readers(api: Api, address: str, number: int) -> AsyncIterator[None]:
    """During the block, run this number of clients. Each requests a megabyte of a log, and reads a byte every 50 ms."""
    host, port = address.removeprefix("http://").split(":")

    async def read(begun: anyio.Event) -> None:
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(head(api, f"GET {LOGS}?limit={MIB}"))
            while True:
                assert len(await stream.receive(1)) == 1
                begun.set()
                await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        for _ in range(number):
            begun = anyio.Event()
            tasks.start_soon(read, begun)
            await begun.wait()
        yield
        tasks.cancel_scope.cancel()


async def test_readers_of_one_byte_at_a_time_keep_nobody_waiting(api: Api, tmp_path: Path) -> None:
    with Path(log_path(str(tmp_path), "daily", "manual__1")).open("wb") as file:
        file.truncate(1024 * MIB)
    admin = {"Authorization": f"Bearer {api.tokens['admin']}"}
    async with (
        served(api) as address,
        slow_readers(api, address, 40),
        httpx.AsyncClient(base_url=address, headers=admin, timeout=10) as client,
    ):
        for offset in (0, 512 * MIB, 1024 * MIB - 10):
            part = await client.get(LOGS, params={"offset": offset, "limit": 10})
            assert part.content == b"\0" * 10
        assert (await client.get(f"{V1}/overview")).status_code == 200


@pytest.mark.parametrize("path", [f"{V1}/changes", f"{LOGS}?follow=true"])
@pytest.mark.parametrize("kind", ["token", "session"])
async def test_an_open_stream_ends_when_its_token_is_revoked(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    monkeypatch.setattr(changes, "_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(logs, "_LOOK_S", 0.05)
    async with served(api) as address, httpx.AsyncClient(base_url=address) as client:
        token = api.tokens["viewer"]
        if kind == "token":
            client.headers["Authorization"] = f"Bearer {token}"
        else:
            ours = {"Sec-Fetch-Site": "same-origin"}
            await client.post(f"{V1}/session", json={"token": token}, headers=ours)
        async with client.stream("GET", path) as stream:
            assert stream.status_code == 200
            received = stream.aiter_raw()
            assert await anext(received)
            async with api.database.transaction() as session:
                await revoke_token(session, TESTER, token.split("_")[1])
            with anyio.fail_after(5):
                async for _ in received:
                    pass
        assert (await client.get(path)).status_code == 401
