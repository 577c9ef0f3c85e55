"""`runs logs --follow` on each database: a run is followed while the test changes its row and its log."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import update

from tests.store.seeding import NOW, add_dag
from triggerer.cli.runs import following
from triggerer.domain.run_logs import log_path
from triggerer.errors import TriggererError, UnknownDag, UnknownRun
from triggerer.processes.instance_ids import new_instance_id
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import DagRun
from triggerer.worker.logs.hosts import record_host

HERE = new_instance_id()
ELSEWHERE = "another:17391:7e812030"


class FullDisk(BytesIO):
    """An output whose disk is full."""

    def write(self, data: object, /) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Followed:
    """A run, its log, and what the command has printed of it."""

    def __init__(self, database: Database, home: Path) -> None:
        self._database = database
        self._home = home
        self.out = BytesIO()
        self.notes: list[str] = []

    async def set(self, **columns: Any) -> None:
        async with self._database.transaction() as session:
            await session.execute(update(DagRun).where(DagRun.run_id == "r").values(**columns))

    async def begin(self, executor: str = HERE, home: Path | None = None) -> None:
        where = str(home or self._home)
        await self.set(state="running", executor=executor, log_home=where, started_at=NOW)

    def write(self, text: str, home: Path | None = None) -> None:
        path = Path(log_path(str(home or self._home), "d", "r"))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            log.write(text)

    async def until(self, printed: str) -> None:
        with anyio.fail_after(30):
            while self.out.getvalue() != printed.encode():  # noqa: ASYNC110 - the command announces nothing
                await anyio.sleep(0.01)

    async def until_noted(self, *states: str) -> None:
        notes = [f"triggerer: the run 'r' is {state}" for state in states]
        with anyio.fail_after(30):
            while self.notes != notes:  # noqa: ASYNC110 - the command announces nothing
                await anyio.sleep(0.01)

    async def follow(self, run_id: str | None = "r", dag_id: str = "d") -> None:
        await following.follow_log(self._database, dag_id, run_id, self.out)

    @asynccontextmanager
    async def following(self, run_id: str | None = "r") -> AsyncIterator[None]:
        """Follow the log during this block; the command must end on its own afterwards."""
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.follow, run_id)
                yield


@pytest.fixture
async def followed(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    await add_dag(database, "d", None)
    async with database.transaction() as session:
        session.add(
            DagRun(dag_id="d", run_id="r", run_type="manual", state="queued", run_after=NOW,
                   queued_at=NOW)
        )  # fmt: skip
    run = Followed(database, tmp_path)
    monkeypatch.setattr(following, "_LOOK_S", 0.01)
    monkeypatch.setattr(following, "print_note", run.notes.append)
    return run


async def test_a_queued_run_is_followed_through_two_attempts_until_it_has_ended(
    followed: Followed,
) -> None:
    async with followed.following():
        await followed.until_noted("queued")
        await followed.begin()
        followed.write("first\n")
        await followed.until("first\n")
        await followed.until_noted("queued", "running")
        # Its executor has died.
        await followed.set(state="queued", started_at=None)
        await followed.until_noted("queued", "running", "queued")
        await followed.begin()
        await followed.until_noted("queued", "running", "queued", "running")
        followed.write("second, in p")
        await followed.until("first\nsecond, in p")
        # Like an executor, write the end of the log before the store shows that the run has ended.
        followed.write("arts\nrun r: success\n")
        await followed.set(state="success")
    assert followed.out.getvalue() == b"first\nsecond, in parts\nrun r: success\n"


async def test_a_full_disk_behind_the_output_is_no_error_of_the_log(followed: Followed) -> None:
    await followed.begin()
    followed.write("one\n")
    followed.out = FullDisk()
    with pytest.raises(OSError, match="No space left on device"):
        await followed.follow()


async def test_a_log_that_cannot_be_read_is_named(followed: Followed, tmp_path: Path) -> None:
    await followed.begin()
    Path(log_path(str(tmp_path), "d", "r")).mkdir(parents=True)
    with pytest.raises(TriggererError, match=r"the log of 'r' cannot be read: .*Is a directory"):
        await followed.follow()


async def test_a_run_that_has_ended_is_printed_whole(followed: Followed) -> None:
    await followed.begin()
    followed.write("all\n")
    await followed.set(state="failed")
    async with followed.following():
        pass
    assert followed.out.getvalue() == b"all\n"


async def test_the_newest_run_stays_the_one_that_is_followed(
    database: Database, followed: Followed
) -> None:
    await followed.begin()
    async with followed.following(run_id=None):
        followed.write("one\n")
        await followed.until("one\n")
        async with database.transaction() as session:
            session.add(
                DagRun(dag_id="d", run_id="newer", run_type="manual", state="queued", run_after=NOW,
                       queued_at=NOW)
            )  # fmt: skip
        await anyio.sleep(0.1)
        await followed.set(state="success")
    assert followed.out.getvalue() == b"one\n"


async def test_an_attempt_with_another_home_is_read_from_its_beginning(
    followed: Followed, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    await followed.begin()
    async with followed.following():
        followed.write("one\n")
        await followed.until("one\n")
        followed.write("two\n", other)
        await followed.begin(home=other)
        await followed.until("one\ntwo\n")
        await followed.set(state="success")


async def test_a_log_that_was_cut_off_is_read_from_its_beginning(
    followed: Followed, tmp_path: Path
) -> None:
    await followed.begin()
    async with followed.following():
        followed.write("a long line\n")
        await followed.until("a long line\n")
        Path(log_path(str(tmp_path), "d", "r")).write_text("new\n")
        await followed.until("a long line\nnew\n")
        await followed.set(state="success")


async def _refused(followed: Followed) -> str:
    with pytest.raises(TriggererError) as refused, anyio.fail_after(30):
        await followed.follow()
    return f"{refused.value.message}; {refused.value.hint}"


async def test_a_run_of_another_machine_is_refused_with_where_its_log_is(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_SHARED_FOLDER_S", 0.1)
    await followed.begin(ELSEWHERE)
    said = await _refused(followed)
    assert "no log of the run 'r' on this machine" in said
    assert f"on the machine of the executor {ELSEWHERE}, unless the run still waits" in said
    await followed.set(state="success")
    assert (await _refused(followed)).endswith(f"the executor {ELSEWHERE}")


async def test_a_log_that_another_machine_writes_into_a_shared_folder_is_followed(
    followed: Followed,
) -> None:
    await followed.begin(ELSEWHERE)
    async with followed.following():
        await anyio.sleep(0.1)
        followed.write("shared\n")
        await followed.until("shared\n")
        await followed.set(state="success")


async def test_the_log_of_an_attempt_here_is_not_followed_for_an_attempt_on_another_host(
    followed: Followed, tmp_path: Path
) -> None:
    record_host(tmp_path, HERE)
    await followed.begin()
    followed.write("first\n")
    await followed.set(executor=ELSEWHERE, state="success")
    assert f"on the machine of the executor {ELSEWHERE}" in await _refused(followed)
    assert followed.out.getvalue() == b""


async def test_a_log_that_cannot_be_followed_is_reported(
    followed: Followed, tmp_path: Path
) -> None:
    with pytest.raises(UnknownRun):
        await followed.follow("nope")
    with pytest.raises(UnknownDag):
        await followed.follow(None, "nope")
    await followed.set(state="cancelled")
    assert "is cancelled and has no log" in await _refused(followed)
    await followed.begin()
    Path(log_path(str(tmp_path), "d", "r")).mkdir(parents=True)
    assert "the log of 'r' cannot be read" in await _refused(followed)
