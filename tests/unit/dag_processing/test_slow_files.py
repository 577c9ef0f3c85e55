"""Files that take long to import, and the new streams that their watchers declare."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from tests.unit.dag_processing.processing import DAG_FILE, every, processing, until
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import DagFile, Stream, Watcher
from triggerer.store.streams.opening import REASON

HOUR = timedelta(hours=1)


def named(name: str) -> str:
    """Return the text of a DAG file with an asset and a watcher of its own. All such files share a stream."""
    return DAG_FILE.replace('Asset("a"', f'Asset("{name}"').replace('DAG("d"', f'DAG("{name}"')


def slow(name: str, gate: Path) -> str:
    """Return such a file that imports only once the gate exists."""
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    return wait + named(name)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def are_closed(rows: list[Stream]) -> bool:
    return bool(rows) and all(row.closed_until is not None for row in rows)


def are_open(rows: list[Stream]) -> bool:
    return bool(rows) and all(row.closed_until is None for row in rows)


async def watcher_paths(database: Database) -> set[str]:
    return {row.path for row in await every(database, Watcher)}


async def test_a_new_stream_is_closed_until_all_files_have_been_read(
    database: Database, folder: Path, gate: Path
) -> None:
    (folder / "a.py").write_text(named("a"))
    (folder / "b.py").write_text(slow("b", gate))
    async with processing(database, folder, file_timeout=HOUR):
        (stream,) = await every(database, Stream)
        assert stream.closed_until is not None
        assert [row.error for row in await every(database, Watcher)] == [REASON]
        gate.touch()
        await until(database, Stream, are_open)
        assert await watcher_paths(database) == {"a.py", "b.py"}
        assert [row.error for row in await every(database, Watcher)] == [None, None]


async def test_a_new_stream_is_open_at_once_if_no_file_is_slow(
    database: Database, folder: Path
) -> None:
    for name in "abc":
        (folder / f"{name}.py").write_text(named(name))
    async with processing(database, folder):
        assert are_open(await every(database, Stream))
        assert await watcher_paths(database) == {"a.py", "b.py", "c.py"}


async def test_files_that_are_deployed_together_are_all_read_before_their_stream_opens(
    database: Database, folder: Path, gate: Path
) -> None:
    async with processing(database, folder, file_timeout=HOUR):
        (folder / "b.py").write_text(slow("b", gate))
        (folder / "a.py").write_text(named("a"))
        await until(database, Stream, are_closed)
        assert await watcher_paths(database) == {"a.py"}
        gate.touch()
        await until(database, Stream, are_open)
        assert await watcher_paths(database) == {"a.py", "b.py"}


async def test_a_file_that_is_broken_counts_as_read(
    database: Database, folder: Path, gate: Path
) -> None:
    (folder / "a.py").write_text(named("a"))
    (folder / "b.py").write_text(slow("b", gate) + "\nraise ValueError('no')\n")
    async with processing(database, folder, file_timeout=HOUR):
        assert are_closed(await every(database, Stream))
        gate.touch()
        await until(database, Stream, are_open)
        assert any(row.errors for row in await every(database, DagFile))


async def test_a_slow_file_that_is_deleted_is_not_waited_for(
    database: Database, folder: Path, gate: Path
) -> None:
    (folder / "a.py").write_text(named("a"))
    (folder / "b.py").write_text(slow("b", gate))
    async with processing(database, folder, file_timeout=timedelta(seconds=4)):
        assert are_closed(await every(database, Stream))
        (folder / "b.py").unlink()
        # The parser keeps reading the deleted file until `file_timeout`. But the file is gone, so no error is stored
        # for it.
        await until(database, Stream, are_open)
        assert [row.path for row in await every(database, DagFile)] == ["a.py"]


async def test_a_file_that_hangs_is_waited_for_as_long_as_a_file_may_take(
    database: Database, folder: Path, gate: Path
) -> None:
    (folder / "a.py").write_text(named("a"))
    (folder / "b.py").write_text(slow("b", gate))
    limit = timedelta(seconds=3)
    async with processing(database, folder, file_timeout=limit):
        (stream,) = await every(database, Stream)
        (row,) = await every(database, DagFile)
        assert stream.closed_until is not None
        assert timedelta() < stream.closed_until - row.parsed_at < limit + timedelta(seconds=1)
        await until(database, Stream, are_open)


async def test_a_stream_that_was_never_read_is_closed_by_the_next_start_too(
    database: Database, folder: Path, gate: Path
) -> None:
    (folder / "a.py").write_text(named("a"))
    (folder / "b.py").write_text(slow("b", gate))
    async with processing(database, folder, file_timeout=HOUR):
        (first,) = await every(database, Stream)
    await anyio.sleep(0.01)
    async with processing(database, folder, file_timeout=HOUR):
        (second,) = await every(database, Stream)
        assert second.closed_until > first.closed_until
        gate.touch()
        await until(database, Stream, are_open)
        assert await watcher_paths(database) == {"a.py", "b.py"}


async def test_a_file_that_is_replaced_while_it_is_first_read_is_waited_for(
    database: Database, folder: Path, gate: Path
) -> None:
    (folder / "a.py").write_text(named("a"))
    file = folder / "b.py"
    file.write_text(slow("b", gate))
    async with processing(database, folder, file_timeout=HOUR, removal_grace=HOUR) as processor:
        file.unlink()
        with anyio.fail_after(20):
            while not processor._vanished:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            # The file is gone, so its result is dropped.
            gate.touch()
            while not processor._parser.is_idle:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        (folder / "c.py").write_text(named("c"))
        both = {"a.py", "c.py"}
        await until(database, Watcher, lambda rows: {row.path for row in rows} == both)
        assert are_closed(await every(database, Stream))
        file.write_text(named("b"))
        await until(database, Stream, are_open)
        assert await watcher_paths(database) == {"a.py", "b.py", "c.py"}
