"""The logs of ended runs are copied to a bucket, even after an outage of the bucket or a kill of the process."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from tests.executor.conftest import House
from tests.executor.tasks.test_callbacks import DAG as CALLED_BACK
from tests.services.storage.log_bucket import LogBucket, open_log_bucket
from triggerer.executor.log_shipping import LogShipper
from triggerer.shipped_logs.bucket import CHUNK_BYTES, open_bucket
from triggerer.shipped_logs.destinations import LogDestination
from triggerer.worker.logs.limit import LogLimit

PRINTS = """
    with DAG("prints"):
        @task
        def prints(params):
            print("line", params["n"])
        prints()
    """


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogBucket]:
    with open_log_bucket(monkeypatch) as bucket:
        yield bucket


def shipper_of(house: House, bucket: LogBucket) -> LogShipper:
    return LogShipper(house.home, LogDestination.of(bucket.url), "here")


@asynccontextmanager
async def shipping(shipper: LogShipper) -> AsyncIterator[LogShipper]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(shipper.run)
        yield shipper
        tasks.cancel_scope.cancel()


async def until(holds: Callable[[], bool], timeout: float = 30) -> None:
    with anyio.fail_after(timeout):
        while not holds():  # noqa: ASYNC110  (a bucket has no event)
            await anyio.sleep(0.02)


def markers(house: House) -> list[Path]:
    return [path for path in (house.home / "unshipped").glob("*/*") if path.name != "lock"]


async def test_the_log_of_each_ended_run_is_copied(house: House, bucket: LogBucket) -> None:
    await house.add_dag("prints", PRINTS)
    async with shipping(shipper_of(house, bucket)) as shipper, house.executor(log_shipper=shipper):
        pks = [(await house.queue("prints", params={"n": n}))[0] for n in range(3)]
        runs = await house.ended(*pks)
        await until(lambda: len(bucket.list()) == 3 and not markers(house))
    for run in runs:
        key = f"team/here/prints/{run.run_id}.log"
        assert bucket.read(key) == house.log_path(run).read_bytes()


async def test_what_callbacks_add_to_a_log_is_copied_too(house: House, bucket: LogBucket) -> None:
    await house.add_dag("d", CALLED_BACK, callbacks="success,failed")
    async with shipping(shipper_of(house, bucket)) as shipper, house.executor(log_shipper=shipper):
        (pk,) = await house.queue("d", params={"folder": str(house.folder), "then": "succeed"})
        (run,) = await house.ended(pk)
        run = await house.until(pk, lambda run: run.callback is None)
        key = f"team/here/d/{run.run_id}.log"
        await until(lambda: key in bucket.list() and not markers(house))
        await until(lambda: bucket.read(key) == house.log_path(run).read_bytes())
        assert b"callback" in bucket.read(key)


async def test_logs_wait_for_a_bucket_that_is_away_and_no_run_does(
    house: House, bucket: LogBucket
) -> None:
    bucket.delete()
    await house.add_dag("prints", PRINTS)
    with capture_logs() as said:
        async with (
            shipping(shipper_of(house, bucket)) as shipper,
            house.executor(log_shipper=shipper),
        ):
            (pk,) = await house.queue("prints", params={"n": 1})
            (run,) = await house.ended(pk)
            assert run.state == "success"
            await until(lambda: any("wait for their bucket" in one["event"] for one in said))
            bucket.create()
            await until(lambda: bucket.list() != [])
    (waited,) = [one for one in said if "wait for their bucket" in one["event"]]
    assert waited["error"].startswith(f"bucket {bucket.name!r} refuses to write logs: ")


async def test_the_next_process_copies_what_a_killed_one_left(
    house: House, bucket: LogBucket
) -> None:
    dead = shipper_of(house, bucket)
    log = house.home / "logs" / "prints" / "manual__1.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"half a")
    async with shipping(dead):
        dead.expect(str(log))
        await until(lambda: len(markers(house)) == 1)
    assert bucket.list() == []
    async with shipping(shipper_of(house, bucket)):
        await until(lambda: not markers(house))
    assert bucket.read("team/here/prints/manual__1.log") == b"half a"


async def test_an_executor_that_starts_leaves_the_logs_of_a_live_one_with_the_same_home(
    house: House, bucket: LogBucket
) -> None:
    log = write_log(house, "manual__1")
    async with shipping(shipper_of(house, bucket)) as live:
        live.expect(str(log))
        await until(lambda: len(markers(house)) == 1)
        async with shipping(shipper_of(house, bucket)) as starting:
            starting.ship(str(write_log(house, "manual__2")))
            await until(lambda: bucket.list() != [])
        assert bucket.list() == ["team/here/prints/manual__2.log"]
        assert len(markers(house)) == 1
    log.write_bytes(b"whole and more")
    async with shipping(shipper_of(house, bucket)):
        await until(lambda: not markers(house))
    assert bucket.read("team/here/prints/manual__1.log") == b"whole and more"


async def test_a_stopped_executor_copies_what_waits(house: House, bucket: LogBucket) -> None:
    log = house.home / "logs" / "prints" / "manual__1.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"whole")
    async with shipping(shipper_of(house, bucket)) as shipper:
        shipper.ship(str(log))
    assert bucket.read("team/here/prints/manual__1.log") == b"whole"


async def test_a_large_log_is_copied_in_parts_without_the_bytes_that_were_cut(
    house: House, bucket: LogBucket
) -> None:
    log = house.home / "logs" / "prints" / "manual__1.log"
    log.parent.mkdir(parents=True)
    most = 4 * CHUNK_BYTES
    with log.open("ab", buffering=0) as file:
        limit = LogLimit(file.fileno(), most)
        for number in range(64):
            file.write((b"%07d\n" % number) * (CHUNK_BYTES // 64))
            limit.enforce()
    async with shipping(shipper_of(house, bucket)) as shipper:
        shipper.ship(str(log))
        await until(lambda: bucket.list() != [])
    copied = bucket.read("team/here/prints/manual__1.log")
    assert 2 * CHUNK_BYTES < len(copied) <= most + CHUNK_BYTES
    assert b"bytes were cut here" in copied
    assert b"\0" not in copied
    assert (copied[:8], copied[-8:]) == (b"0000000\n", b"0000063\n")


async def test_a_log_that_was_deleted_before_it_was_copied_is_forgotten(
    house: House, bucket: LogBucket
) -> None:
    gone = house.home / "logs" / "prints" / "manual__1.log"
    async with shipping(shipper_of(house, bucket)) as shipper:
        shipper.expect(str(gone))
        await until(lambda: len(markers(house)) == 1)
        shipper.ship(str(gone))
        await until(lambda: not markers(house))
    assert bucket.list() == []


async def test_a_note_that_was_cut_while_it_was_written_is_deleted(
    house: House, bucket: LogBucket
) -> None:
    folder = house.home / "unshipped" / "dead"
    folder.mkdir(parents=True)
    (folder / "0123").write_text("")
    async with shipping(shipper_of(house, bucket)):
        assert markers(house) == []


async def test_a_copy_that_a_stop_interrupts_leaves_no_parts_in_the_bucket(
    house: House, bucket: LogBucket
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * CHUNK_BYTES

    async with open_bucket(bucket.name) as opened:
        with anyio.move_on_after(1):
            await opened.put("team/here/endless/manual__1.log", endless())
    assert bucket.list() == []
    assert "Uploads" not in bucket.sdk.list_multipart_uploads(Bucket=bucket.name)


def write_log(house: House, name: str) -> Path:
    log = house.home / "logs" / "prints" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"whole")
    return log


def spoil_marker(house: House, log: Path) -> None:
    """Make a folder at the path of the log's marker, so that the marker can be neither written nor deleted."""
    file = log.relative_to(house.home / "logs").as_posix()
    (own,) = (house.home / "unshipped").iterdir()
    (own / hashlib.sha256(file.encode()).hexdigest()).mkdir()


@asynccontextmanager
async def shipping_with_a_bad_marker(
    house: House, bucket: LogBucket
) -> AsyncIterator[tuple[LogShipper, Path, Path]]:
    """Yield a shipper and two logs. The marker of the first log can be neither written nor deleted."""
    first, second = write_log(house, "first"), write_log(house, "second")
    async with shipping(shipper_of(house, bucket)) as shipper:
        spoil_marker(house, first)
        yield shipper, first, second


async def test_a_marker_that_cannot_be_deleted_stops_no_copies(
    house: House, bucket: LogBucket
) -> None:
    with capture_logs() as said:
        async with shipping_with_a_bad_marker(house, bucket) as (shipper, first, second):
            shipper.ship(str(first))
            await until(lambda: len(bucket.list()) == 1)
            shipper.ship(str(second))
            await until(lambda: len(bucket.list()) == 2)
    (warning,) = [one for one in said if one["log_level"] == "warning"]
    assert (warning["event"], warning["log"]) == (
        "the marker of a log cannot be deleted",
        "prints/first.log",
    )


async def test_a_marker_that_cannot_be_written_keeps_no_other_from_being_written(
    house: House, bucket: LogBucket
) -> None:
    with capture_logs() as said:
        async with shipping_with_a_bad_marker(house, bucket) as (shipper, first, second):
            shipper.expect(str(first))
            shipper.expect(str(second))
            await until(lambda: len(markers(house)) == 2)
            await until(lambda: len(said) > 0)
    (warning,) = said
    assert warning["event"] == "the markers of logs cannot be written"
    assert (warning["log_level"], warning["logs"]) == ("warning", 1)


async def test_a_marker_that_cannot_be_read_keeps_no_other_from_being_taken_over(
    house: House, bucket: LogBucket
) -> None:
    root = house.home / "unshipped"
    for process in ("one", "two"):
        folder = root / process
        # Reading a folder as text raises an error for every user, even for root.
        (folder / "unreadable").mkdir(parents=True)
        for number in range(3):
            file = write_log(house, f"{process}__{number}").relative_to(house.home / "logs")
            name = hashlib.sha256(file.as_posix().encode()).hexdigest()
            (folder / name).write_text(file.as_posix())
    with capture_logs() as said:
        async with shipping(shipper_of(house, bucket)):
            await until(lambda: len(bucket.list()) == 6)
            await until(lambda: {path.name for path in markers(house)} == {"unreadable"})
    # A later process finds the markers that could not be read.
    assert {path.parent.name for path in markers(house)} == {"one", "two"}
    (warning,) = said
    assert warning["event"] == "the logs of dead executors cannot be taken over"
    assert "unreadable" in warning["error"]


async def test_a_full_disk_at_the_start_stops_neither_the_executor_nor_the_copies(
    house: House, bucket: LogBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    await house.add_dag("prints", PRINTS)
    with capture_logs() as said, monkeypatch.context() as patch:
        patch.setattr("triggerer.executor.log_shipping.make_owned", fail)
        async with (
            shipping(shipper_of(house, bucket)) as shipper,
            house.executor(log_shipper=shipper),
        ):
            (pk,) = await house.queue("prints", params={"n": 1})
            await house.ended(pk)
            await until(lambda: len(bucket.list()) == 1)
            patch.undo()
            shipper.expect(str(house.home / "logs" / "prints" / "later.log"))
            await until(lambda: len(markers(house)) == 1)
    assert "the logs of dead executors cannot be taken over" in {one["event"] for one in said}
