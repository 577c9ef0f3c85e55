"""`logs?follow=true` sends a log from its beginning when the log is replaced, and sends the rest or breaks off."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import TaskGroup
from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from tests.api.conftest import Api
from tests.api.test_connections import served
from tests.api.test_shipped_logs import bucket, ship_to
from tests.services.storage.log_bucket import LogBucket
from triggerer.api.context import DatabaseUse
from triggerer.api.routes import logs
from triggerer.api.run_log import LogPart, LogReader, read_whole
from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState
from triggerer.errors import ServerBusy, StoreUnavailable, TriggererError
from triggerer.executor.log_server import LogServer
from triggerer.processes.instance_ids import new_instance_id
from triggerer.store.runs.listing import list_runs
from triggerer.store.runs.log_addresses import log_address_for
from triggerer.store.schema.models import DagRun
from triggerer.store.streams.leases import register_instance
from triggerer.worker.logs.hosts import record_host

__all__ = ["bucket"]

LOGS = "/api/v1/dags/daily/dagRuns/manual__1/logs"
OLD, NEW = b"old line 1\nold line 2\n", b"new line 1\nnew line 2\nnew line 3\n"


class Followed:
    """An answer that is being received."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.received = b""
        self._chunks = answer.aiter_raw()

    async def expect(self, whole: bytes) -> None:
        """Receive until the body is `whole`. Fail if it is anything else."""
        with anyio.fail_after(10):
            while len(self.received) < len(whole):
                self.received += await anext(self._chunks)
        assert self.received == whole

    async def expect_end(self) -> None:
        with anyio.fail_after(10):
            assert [chunk async for chunk in self._chunks] == []

    async def expect_break(self) -> None:
        """Receive until the answer breaks off, so that the client knows that its end is missing."""
        with pytest.raises(httpx.RemoteProtocolError):
            await self.expect_end()


@asynccontextmanager
async def followed(api: Api, **query: Any) -> AsyncIterator[Followed]:
    headers = {"Authorization": f"Bearer {api.tokens['viewer']}"}
    async with (
        served(api) as address,
        httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client,
        client.stream("GET", LOGS, params={"follow": True, **query}) as answer,
    ):
        assert answer.status_code == 200
        yield Followed(answer)


@pytest.fixture(autouse=True)
def _looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LOOK_S", 0.02)


def write_log(home: Path, content: bytes) -> None:
    log = Path(log_path(str(home), "daily", "manual__1"))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(content)


async def change_run(api: Api, **values: Any) -> None:
    async with api.database.transaction() as session:
        await session.execute(update(DagRun).values(**values))


async def test_the_next_attempt_is_followed_from_the_beginning_of_its_own_log(
    api: Api, tmp_path: Path
) -> None:
    write_log(tmp_path, OLD)
    async with followed(api, offset=4) as log:
        await log.expect(OLD[4:])
        write_log(tmp_path / "other", NEW)
        await change_run(api, log_home=str(tmp_path / "other"), attempt=2)
        await log.expect(OLD[4:] + NEW)
        await change_run(api, state="success")
        await log.expect_end()


async def test_a_log_that_was_truncated_is_followed_from_its_beginning(
    api: Api, tmp_path: Path
) -> None:
    write_log(tmp_path, OLD)
    async with followed(api, tail=11) as log:
        await log.expect(OLD[11:])
        write_log(tmp_path, NEW[:5])
        await log.expect(OLD[11:] + NEW[:5])


async def test_the_next_attempt_on_another_machine_is_followed_from_its_beginning(
    api: Api, tmp_path: Path
) -> None:
    """The paths of both logs are equal, because the machines have the same configuration."""
    machines = {"one:1:a": OLD, "two:1:a": NEW}
    await change_run(api, executor="one:1:a", log_home="/not/here")
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        for executor, content in machines.items():
            home = tmp_path / executor
            write_log(home, content)
            await serve_logs(api, executor, home, tasks)
        log = await stack.enter_async_context(followed(api))
        await log.expect(OLD)
        await change_run(api, executor="two:1:a", attempt=2)
        await log.expect(OLD + NEW)


@pytest.mark.parametrize("is_here_first", [True, False])
async def test_an_attempt_here_and_one_on_another_machine_are_two_logs(
    api: Api, tmp_path: Path, is_here_first: bool
) -> None:
    """Each machine has a log of the run, under the same path."""
    here, there = new_instance_id(), "two:1:a"
    first, second = (here, there) if is_here_first else (there, here)
    home, other = tmp_path / "home", tmp_path / "other"
    contents = {here: OLD if is_here_first else NEW, there: NEW if is_here_first else OLD}
    write_log(home, contents[here])
    write_log(other, contents[there])
    record_host(home, here)
    await change_run(api, executor=first, log_home=str(home))
    async with anyio.create_task_group() as tasks:
        await serve_logs(api, there, other, tasks)
        async with followed(api) as log:
            await log.expect(OLD)
            await change_run(api, executor=second, attempt=2)
            await log.expect(OLD + NEW)
        tasks.cancel_scope.cancel()


async def serve_logs(api: Api, executor: str, home: Path, tasks: TaskGroup) -> None:
    """Serve the logs of an executor on another machine, and wait until the API can find the server."""
    async with api.database.transaction() as session:
        await register_instance(session, executor, kind="executor")
    await tasks.start(LogServer(api.database, executor, home, "127.0.0.1:0").run)
    with anyio.fail_after(30):
        while True:
            async with api.database.reading() as session:
                if await log_address_for(session, executor) is not None:
                    return
            await anyio.sleep(0.01)


async def test_the_headers_of_a_log_that_is_still_empty_are_sent_at_once(
    api: Api, tmp_path: Path
) -> None:
    write_log(tmp_path, b"")
    async with followed(api) as log:
        assert log.answer.headers["x-log-size"] == "0"
        await change_run(api, state="success")
        await log.expect_end()


async def test_an_offset_behind_the_end_waits_for_the_log_to_reach_it(
    api: Api, tmp_path: Path
) -> None:
    write_log(tmp_path, OLD)
    async with followed(api, offset=len(OLD) + 2) as log:
        with Path(log_path(str(tmp_path), "daily", "manual__1")).open("ab") as file:
            file.write(b"12345")
        await log.expect(b"345")


class Machine:
    """The machine that has the log. While it is silent, its log cannot be read."""

    def __init__(self) -> None:
        self.is_silent = False
        self.refused_rest = anyio.Event()
        """Set when the rest of the log of an ended run was requested in vain."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    read_now = LogReader.read

    async def read(reader: LogReader, start: int, limit: int) -> LogPart:
        if not machine.is_silent:
            return await read_now(reader, start, limit)
        if RunState(reader.row.state).is_final:
            machine.refused_rest.set()
        raise ServerBusy("the machine does not answer")

    monkeypatch.setattr(LogReader, "read", read)
    return machine


async def test_the_rest_of_a_log_is_sent_when_its_machine_answers_again_after_the_end_of_the_run(
    api: Api, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_REST_S", math.inf)
    write_log(tmp_path, OLD)
    async with followed(api) as log:
        await log.expect(OLD)
        machine.is_silent = True
        write_log(tmp_path, OLD + NEW)
        await change_run(api, state="success")
        with anyio.fail_after(30):
            await machine.refused_rest.wait()
        machine.is_silent = False
        await log.expect(OLD + NEW)
        await log.expect_end()


async def test_an_answer_breaks_off_if_the_rest_of_the_log_cannot_be_read(
    api: Api,
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logs, "_REST_S", 0.1)
    write_log(tmp_path, OLD)
    async with followed(api) as log:
        await log.expect(OLD)
        machine.is_silent = True
        await change_run(api, state="success")
        with capture_logs() as lines:
            await log.expect_break()
    # One line without a traceback tells the operator the reason.
    assert [(line["event"], line["error"]) for line in lines] == [
        ("an answer was broken off", "the machine does not answer")
    ]
    assert not caplog.records


async def move_to(api: Api, bucket: LogBucket, tmp_path: Path, copy: bytes) -> None:
    """End the run, and leave only the copy of its log."""
    bucket.put("team/gone/daily/manual__1.log", copy)
    Path(log_path(str(tmp_path), "daily", "manual__1")).unlink()
    await change_run(api, executor="gone:1:dead", state="success")


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_log_that_moves_to_the_bucket_is_followed_there_and_from_its_beginning_if_it_was_cut(
    api: Api, tmp_path: Path, bucket: LogBucket, is_cut: bool
) -> None:
    """The copy lacks the bytes that were cut, so its positions are not the positions of the log."""
    copy = OLD[:4] + NEW[-5:] if is_cut else OLD + NEW
    ship_to(api, bucket)
    write_log(tmp_path, OLD)
    async with followed(api) as log:
        await log.expect(OLD)
        await move_to(api, bucket, tmp_path, copy)
        await log.expect(OLD + copy if is_cut else copy)
        await log.expect_end()


async def test_a_download_breaks_off_if_the_log_moves_to_a_copy_that_lacks_bytes(
    api: Api, tmp_path: Path, bucket: LogBucket
) -> None:
    ship_to(api, bucket)
    write_log(tmp_path, OLD)
    async with api.database.reading() as session:
        (row,) = await list_runs(session, dag="daily", run_id="manual__1")
    ended = replace(row, executor="gone:1:dead", state="success")
    whole = read_whole(api.context, ended, size=len(OLD), chunk_bytes=4)
    async with aclosing(whole):
        assert await anext(whole) == OLD[:4]
        await move_to(api, bucket, tmp_path, OLD[:8])
        with pytest.raises(TriggererError, match="replaced"):
            await anext(whole)


async def test_an_outage_of_the_database_does_not_end_a_followed_log(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = anyio.Semaphore(0)

    @asynccontextmanager
    async def unavailable(_: DatabaseUse) -> AsyncIterator[AsyncSession]:
        failed.release()
        raise StoreUnavailable("the database does not answer")
        yield

    write_log(tmp_path, OLD)
    async with followed(api) as log:
        await log.expect(OLD)
        with monkeypatch.context() as outage, anyio.fail_after(30):
            outage.setattr(DatabaseUse, "reading", unavailable)
            # Each look checks the client's token and reads the run's state.
            for _ in range(4):
                await failed.acquire()
        write_log(tmp_path, OLD + NEW)
        await change_run(api, state="success")
        await log.expect(OLD + NEW)
        await log.expect_end()


async def test_an_answer_breaks_off_if_the_run_is_deleted(api: Api, tmp_path: Path) -> None:
    write_log(tmp_path, OLD)
    async with followed(api) as log:
        await log.expect(OLD)
        async with api.database.transaction() as session:
            await session.execute(delete(DagRun))
        await log.expect_break()
