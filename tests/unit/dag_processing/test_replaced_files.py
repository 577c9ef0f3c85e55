"""A file that is deleted and written again is replaced; one that stays away is deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from sqlalchemy import update

from tests.unit.dag_processing.processing import DAG_FILE, every, processing, until
from triggerer.dag_processing import processor
from triggerer.domain.dag_files.missing_files import judge_missing
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.schema.models import Dag, DagFile, Stream, Watcher

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LONG = timedelta(hours=1)
TWO = DAG_FILE.replace("one", "two")


@pytest.fixture
def file(folder: Path) -> Path:
    """The only DAG file of the folder."""
    path = folder / "a.py"
    path.write_text(DAG_FILE)
    return path


def test_a_missing_file_is_away_until_the_grace_is_over() -> None:
    judged = judge_missing(
        {"new": None, "old": NOW - MINUTE, "older": NOW - 2 * MINUTE}, now=NOW, grace=2 * MINUTE
    )
    assert judged.away == {"new": NOW, "old": NOW - MINUTE}
    assert judged.deleted == {"older"}
    assert judged.next_in == MINUTE


def test_without_a_grace_a_missing_file_is_deleted() -> None:
    judged = judge_missing({"a": None}, now=NOW, grace=timedelta())
    assert (judged.away, judged.deleted, judged.next_in) == ({}, {"a"}, None)


def test_a_clock_that_was_set_back_begins_the_grace_anew() -> None:
    judged = judge_missing({"a": NOW + LONG}, now=NOW, grace=MINUTE)
    assert (judged.away, judged.next_in) == ({"a": NOW}, MINUTE)


def test_a_file_that_came_back_unnoticed_by_the_store_has_its_whole_grace() -> None:
    judged = judge_missing(
        {"a": NOW - LONG, "b": NOW - LONG, "c": NOW},
        now=NOW,
        grace=2 * MINUTE,
        gone_for={"a": MINUTE, "c": LONG, "unknown": MINUTE},
    )
    assert judged.away == {"a": NOW - MINUTE, "c": NOW}
    assert judged.deleted == {"b"}


async def test_a_file_that_was_there_while_the_database_was_away_is_not_deleted_early(
    database: Database, folder: Path, file: Path
) -> None:
    """A file vanishes before an outage, is back during the outage, and vanishes again afterwards (seed 302).

    The store knows only when the file first vanished.
    """
    async with processing(database, folder, removal_grace=LONG):
        async with database.transaction() as session:
            await session.execute(update(DagFile).values(missing_since=NOW))
        file.unlink()
        await until(database, DagFile, lambda rows: [row.missing_since for row in rows] != [NOW])
        assert not any(row.is_stale for row in await every(database, Dag))
        assert [row.path for row in await every(database, DagFile)] == ["a.py"]


async def test_a_file_that_is_away_for_a_moment_keeps_what_it_defines(
    database: Database, folder: Path, file: Path
) -> None:
    async with processing(database, folder, removal_grace=LONG):
        (before,) = await every(database, Watcher)
        changes = database.wakeups.subscribe(Signal.STREAMS_CHANGED)
        file.unlink()
        await until(database, DagFile, lambda rows: rows[0].missing_since is not None)
        (after,) = await every(database, Watcher)
        assert (after.id, after.trigger_id) == (before.id, before.trigger_id)
        assert not any(row.is_stale for row in await every(database, Dag))
        file.write_text(TWO)
        await until(database, Dag, lambda rows: [row.description for row in rows] == ["two"])
        assert [row.missing_since for row in await every(database, DagFile)] == [None]
        (after,) = await every(database, Watcher)
        assert (after.id, after.trigger_id) == (before.id, before.trigger_id)
        assert changes.take_nowait() == {}


async def test_a_file_that_stays_away_is_deleted_when_the_grace_is_over(
    database: Database, folder: Path, file: Path
) -> None:
    async with processing(database, folder, removal_grace=timedelta(seconds=0.5)):
        file.unlink()
        await until(database, Dag, lambda rows: [row.is_stale for row in rows] == [True])
        assert [row.trigger_id for row in await every(database, Watcher)] == [None]
        assert await every(database, Stream) == []
        assert await every(database, DagFile) == []


async def test_a_restart_neither_ends_the_grace_nor_begins_it_anew(
    database: Database, folder: Path, file: Path
) -> None:
    async with processing(database, folder, removal_grace=LONG):
        file.unlink()
        (row,) = await until(database, DagFile, lambda rows: rows[0].missing_since is not None)
    async with processing(database, folder, removal_grace=LONG):
        assert not any(dag.is_stale for dag in await every(database, Dag))
        (again,) = await every(database, DagFile)
        assert again.missing_since == row.missing_since
    async with database.transaction() as session:
        await session.execute(update(DagFile).values(missing_since=row.missing_since - LONG))
    async with processing(database, folder, removal_grace=LONG):
        assert all(dag.is_stale for dag in await every(database, Dag))


async def test_a_file_that_comes_back_while_no_service_runs_was_never_deleted(
    database: Database, folder: Path, file: Path
) -> None:
    async with processing(database, folder, removal_grace=LONG):
        file.unlink()
        await until(database, DagFile, lambda rows: rows[0].missing_since is not None)
    file.write_text(TWO)
    async with processing(database, folder, removal_grace=LONG):
        assert [row.missing_since for row in await every(database, DagFile)] == [None]
        assert [(dag.is_stale, dag.description) for dag in await every(database, Dag)] == [
            (False, "two")
        ]


async def test_a_file_that_was_moved_is_in_force_at_once(
    database: Database, folder: Path, file: Path
) -> None:
    async with processing(database, folder, removal_grace=LONG):
        (before,) = await every(database, Watcher)
        file.rename(folder / "b.py")
        await until(database, Dag, lambda rows: [row.path for row in rows] == ["b.py"])
        (after,) = await every(database, Watcher)
        assert (after.id, after.path) == (before.id, "b.py")
        assert not any(row.errors for row in await every(database, DagFile))


MORE = """
with DAG("e"):
    pass
"""


async def test_a_file_that_has_just_changed_takes_nothing_back(
    database: Database, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cp` and editors truncate a file before they write it: for a moment it is valid, and empty."""
    monkeypatch.setattr(processor, "STABLE_AFTER_S", LONG.total_seconds())
    async with processing(database, folder):
        changes = database.wakeups.subscribe(Signal.STREAMS_CHANGED)
        for half in ("", DAG_FILE.partition("a = Asset")[0], DAG_FILE.partition("with")[0]):
            file.write_text(half)
            await anyio.sleep(0.4)  # time to read the file: otherwise the test shows nothing
        file.write_text(DAG_FILE + MORE)
        await until(database, Dag, lambda rows: {row.dag_id for row in rows} == {"d", "e"})
        assert not any(dag.is_stale for dag in await every(database, Dag))
        assert changes.take_nowait() == {}


async def test_a_file_that_is_cut_while_the_service_starts_takes_nothing_back(
    database: Database, folder: Path, file: Path
) -> None:
    """At the start every file counts as just changed, even if its modification time is old."""
    async with processing(database, folder):
        (before,) = await every(database, Watcher)
    file.write_text("")
    await anyio.sleep(processor.STABLE_AFTER_S + 0.1)
    async with processing(database, folder):
        await anyio.sleep(0.4)  # time to read the file: otherwise the test shows nothing
        for more in ("", MORE):
            assert not any(dag.is_stale for dag in await every(database, Dag))
            assert [watcher.id for watcher in await every(database, Watcher)] == [before.id]
            file.write_text(DAG_FILE + more)
            await until(database, Dag, lambda rows, n=1 + bool(more): len(rows) == n)


async def test_a_file_that_is_being_read_again_takes_nothing_back(
    database: Database, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "STABLE_AFTER_S", 0.2)
    async with processing(database, folder):
        file.write_text("")
        await anyio.sleep(0.1)
        file.write_text(f"import time\ntime.sleep(1.5)\n{DAG_FILE}{MORE}")
        changes = database.wakeups.subscribe(Signal.STREAMS_CHANGED)
        await until(database, Dag, lambda rows: {row.dag_id for row in rows} == {"d", "e"})
        assert not any(dag.is_stale for dag in await every(database, Dag))
        assert changes.take_nowait() == {}


async def test_removed_definitions_are_gone_once_the_file_is_stable(
    database: Database, folder: Path, file: Path
) -> None:
    async with processing(database, folder):
        file.write_text("")
        await until(database, Dag, lambda rows: [row.is_stale for row in rows] == [True])
        assert await every(database, Stream) == []
