"""The API shows the log of a run on the machine of another executor."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from tests.api.conftest import Api
from triggerer.domain.log_requests import LogRequest, read_request
from triggerer.domain.run_logs import log_path
from triggerer.errors import ConfigurationError
from triggerer.executor.log_server import LogServer
from triggerer.processes.instance_ids import new_instance_id
from triggerer.store.runs.log_addresses import log_address_for
from triggerer.store.schema.models import DagRun
from triggerer.store.streams.leases import register_instance
from triggerer.worker.logs.hosts import record_host

HERE, THERE = "elsewhere:1:ended", "elsewhere:2:alive"
LOGS = "/api/v1/dags/daily/dagRuns/manual__1/logs"


@asynccontextmanager
async def other_machine(api: Api, home: Path) -> AsyncIterator[None]:
    """Store that a dead executor of another machine executed the run. A live executor there serves the run's log."""
    log = Path(log_path(str(home), "daily", "manual__1"))
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(50_000)))
    async with api.database.transaction() as session:
        await session.execute(
            update(DagRun).values(executor=HERE, log_home="/not/here", state="success")
        )
        await register_instance(session, THERE, kind="executor")
    async with anyio.create_task_group() as tasks:
        await tasks.start(LogServer(api.database, THERE, home, "127.0.0.1:0").run)
        while True:
            async with api.database.reading() as session:
                if await log_address_for(session, HERE) is not None:
                    break
            await anyio.sleep(0.01)
        yield
        tasks.cancel_scope.cancel()


async def _port(api: Api) -> int:
    """Return the port of the executor that serves the run's log."""
    async with api.database.reading() as session:
        address = await log_address_for(session, HERE)
    assert address is not None
    return int(address.rpartition(":")[2])


async def test_the_api_passes_on_the_log_of_another_machine(api: Api, tmp_path: Path) -> None:
    whole = b"".join(b"line %d\n" % number for number in range(50_000))
    async with other_machine(api, tmp_path / "there"), api.client("viewer") as client:
        part = await client.get(LOGS, params={"offset": 7, "limit": 14})
        tail = await client.get(LOGS, params={"tail": 11})
        followed = await client.get(LOGS, params={"follow": True})
        download = await client.get(LOGS, params={"download": True})
    assert part.content == b"line 1\nline 2\n"
    assert tail.content == b"line 49999\n"
    assert tail.headers["x-log-size"] == str(len(whole))
    assert followed.content == download.content == whole


async def test_the_api_does_not_show_the_log_of_an_earlier_attempt_on_its_own_machine(
    api: Api, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    log = Path(log_path(str(here), "daily", "manual__1"))
    log.parent.mkdir(parents=True)
    log.write_bytes(b"the first attempt\n")
    record_host(here, new_instance_id())
    async with other_machine(api, tmp_path / "there"), api.client("viewer") as client:
        async with api.database.transaction() as session:
            await session.execute(update(DagRun).values(log_home=str(here)))
        part = await client.get(LOGS, params={"limit": 7})
    assert part.content == b"line 0\n"


async def test_an_error_while_a_log_is_sent_does_not_become_a_part_of_the_log(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(log: object, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(anyio.AsyncFile, "read", read)
    async with other_machine(api, tmp_path / "there"), api.client("viewer") as client:
        with capture_logs() as lines:
            answer = await client.get(LOGS, params={"limit": 14})
    assert answer.status_code == 503
    assert "does not send the log" in answer.text
    (warning,) = [line for line in lines if line["event"] == "a log cannot be sent"]
    assert "Input/output error" in warning["error"]


async def test_a_log_that_no_machine_serves_names_the_machine_that_has_it(api: Api) -> None:
    async with api.database.transaction() as session:
        await session.execute(update(DagRun).values(executor=HERE, log_home="/not/here"))
    async with api.client("viewer") as client:
        answer = await client.get(LOGS)
    assert answer.status_code == 409
    assert HERE in answer.json()["hint"]


async def test_an_executor_refuses_a_request_that_is_not_signed(api: Api, tmp_path: Path) -> None:
    async with other_machine(api, tmp_path / "there"):
        port = await _port(api)
        forged = LogRequest("daily", "manual__1", 0, 100, 2e9).signed(b"another key")
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(forged)
            assert b"refused" in await stream.receive()


@pytest.mark.parametrize(
    ("change", "is_read"),
    [({}, True), ({"valid_until": 99.0}, False), ({"valid_until": 1e9}, False)],
)
def test_a_request_counts_for_a_short_time(change: dict[str, float], is_read: bool) -> None:
    request = replace(LogRequest("d", "r", 0, 10, 130.0), **change)  # type: ignore[arg-type]
    assert (read_request(request.signed(b"key"), b"key", now=100.0) == request) is is_read


HOSTILE = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"mac": 1}',
    b"\xff",
    b"[" * 4_000,
    b'{"a":' * 800,
    b'{"mac": "", "dag_id": "d", "run_id": "r", "start": Infinity, "limit": 1, "valid_until": 1}',
    b'{"mac": "", "dag_id": "d", "run_id": "r", "start": 0, "limit": 1, "valid_until": 1%s}'
    % (b"0" * 400),
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_malformed_request_is_none(line: bytes) -> None:
    assert read_request(line, b"key", now=0.0) is None


@pytest.mark.parametrize(
    "change", [{"start": math.inf}, {"limit": "x"}, {"valid_until": 10**400}, {"valid_until": None}]
)
def test_a_signed_request_with_a_value_of_the_wrong_kind_is_none(change: dict[str, Any]) -> None:
    request = replace(LogRequest("d", "r", 0, 10, 130.0), **change)
    assert read_request(request.signed(b"key"), b"key", now=100.0) is None


async def test_no_line_of_a_stranger_stops_the_log_server(api: Api, tmp_path: Path) -> None:
    async with other_machine(api, tmp_path / "there"):
        port = await _port(api)
        for line in HOSTILE:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(line + b"\n")
                assert b"refused" in await stream.receive()
        async with api.client("viewer") as client:
            part = await client.get(LOGS, params={"offset": 7, "limit": 7})
    assert part.content == b"line 1\n"


async def test_a_position_far_behind_the_end_of_the_log_gives_no_bytes(
    api: Api, tmp_path: Path
) -> None:
    async with other_machine(api, tmp_path / "there"), api.client("viewer") as client:
        far = await client.get(LOGS, params={"offset": 10**30})
        part = await client.get(LOGS, params={"offset": 7, "limit": 7})
        async with api.database.transaction() as session:
            await session.execute(update(DagRun).values(log_home=str(tmp_path / "there")))
        near = await client.get(LOGS, params={"offset": 10**30})
    assert (far.status_code, far.content) == (200, b"")
    assert (near.status_code, near.content) == (200, b"")
    assert part.content == b"line 1\n"


async def test_an_address_that_is_taken_or_malformed_is_a_wrong_setting(
    api: Api, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        LogServer(api.database, THERE, tmp_path, "nonsense")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match="cannot be bound"):
            await LogServer(api.database, THERE, tmp_path, address).run()
