"""A folder that is missing for a while loses no definitions, and files that come back are read at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.unit.dag_processing.processing import DAG_FILE, every, processing, until
from triggerer.dag_processing import scanning
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Dag, DagFile, Watcher

OTHER = """\
from triggerer import DAG
with DAG("other"):
    pass
"""


@pytest.fixture
def said() -> Iterator[list[EventDict]]:
    with capture_logs() as entries:
        yield entries


@pytest.fixture
def full(folder: Path) -> Path:
    (folder / "a.py").write_text(DAG_FILE)
    (folder / "sub").mkdir()
    (folder / "sub" / "b.py").write_text(OTHER)
    return folder


async def in_force(database: Database) -> tuple[set[str], int]:
    """Return the DAGs that are not stale, and the number of watchers with a trigger."""
    dags = {row.dag_id for row in await every(database, Dag) if not row.is_stale}
    watchers = [row for row in await every(database, Watcher) if row.trigger_id is not None]
    return dags, len(watchers)


def descriptions(rows: list[Any]) -> list[str | None]:
    return [row.description for row in rows if not row.is_stale]


ALL = ({"d", "other"}, 1)


def about(said: list[EventDict], level: str) -> list[EventDict]:
    return [entry for entry in said if entry["log_level"] == level and "path" in entry]


async def shown(database: Database, *paths: str) -> list[Any]:
    """Wait until exactly these files are shown as broken, and return their errors."""

    def broken(rows: list[Any]) -> dict[str, Any]:
        return {row.path: row.errors for row in rows if row.errors}

    rows = await until(database, DagFile, lambda rows: set(broken(rows)) == set(paths))
    return [error for errors in broken(rows).values() for error in errors]


async def test_a_folder_that_goes_while_it_is_watched_retires_nothing(
    database: Database, full: Path, said: list[EventDict]
) -> None:
    async with processing(database, full, min_file_process_interval=timedelta(seconds=0.2)):
        full.rename(full.with_name("away"))
        (error,) = await shown(database, ".")
        assert error["file"] == str(full)
        assert "No such file or directory" in error["reason"]
        assert await in_force(database) == ALL
        # A new file is found, so the folder was scanned in the meantime.
        full.mkdir()
        (full / "new.py").write_text(OTHER.replace("other", "new"))
        await until(database, Dag, lambda rows: {"new"} <= {row.dag_id for row in rows})
    (entry,) = about(said, "error")
    assert entry["path"] == str(full)
    assert "--dags-folder" in entry["hint"]
    assert len(about(said, "info")) == 1


async def test_a_folder_that_comes_back_is_read_and_watched_again(
    database: Database, full: Path
) -> None:
    away = full.with_name("away")
    async with processing(database, full):  # scanned every hour
        full.rename(away)
        await shown(database, ".")
        away.rename(full)
        await shown(database)
        assert await in_force(database) == ALL
        (full / "a.py").unlink()
        await until(database, Dag, lambda rows: any(row.is_stale for row in rows))
        assert await in_force(database) == ({"other"}, 0)


async def test_a_start_without_the_folder_retires_nothing(
    database: Database, full: Path, said: list[EventDict]
) -> None:
    async with processing(database, full):
        pass
    full.rename(full.with_name("away"))
    async with processing(database, full):
        await shown(database, ".")
        assert await in_force(database) == ALL
        assert len(about(said, "error")) == 1
        full.with_name("away").rename(full)
        await shown(database)
        assert await in_force(database) == ALL


async def test_a_folder_that_is_there_and_empty_retires_its_dags(
    database: Database, full: Path
) -> None:
    async with processing(database, full):
        pass
    full.rename(full.with_name("away"))
    full.mkdir()
    async with processing(database, full):
        assert await in_force(database) == (set(), 0)


async def test_a_file_found_broken_while_another_was_out_of_sight_is_read_again(
    database: Database, full: Path
) -> None:
    (full / "sub" / "x.py").write_text('NAME = "other"')
    (full / "sub" / "b.py").unlink()
    uses_it = OTHER.replace('"other"', "NAME")
    uses_it = f"from sub.x import NAME\n{uses_it}"
    (full / "a.py").write_text(uses_it)
    async with processing(database, full, min_file_process_interval=timedelta(seconds=0.1)):
        assert await in_force(database) == ({"other"}, 0)
        (full / "sub").rename(full.parent / "sub")
        (full / "sub").symlink_to(full / "nowhere")
        await shown(database, "sub")
        (full / "a.py").write_text(uses_it + "# changed\n")
        await shown(database, "a.py", "sub")
        (full / "sub").unlink()
        (full.parent / "sub").rename(full / "sub")
        await shown(database)
        assert await in_force(database) == ({"other"}, 0)


async def test_a_folder_that_is_deleted_and_made_anew_is_watched_again(
    database: Database, full: Path
) -> None:
    """The new folder may get the inode of the deleted folder. Then its inode does not show that the folder is new."""
    async with processing(database, full):  # scanned every hour
        for name in ("first", "second"):
            shutil.rmtree(full)
            full.mkdir()
            (full / "a.py").write_text(DAG_FILE.replace("one", name))
            await until(database, Dag, lambda rows, name=name: name in descriptions(rows))
            (full / "a.py").write_text(DAG_FILE.replace("one", f"{name} again"))
            await until(
                database, Dag, lambda rows, name=name: f"{name} again" in descriptions(rows)
            )


@pytest.mark.parametrize("below", ["", "repository"])
async def test_a_link_that_is_switched_is_followed_at_once(
    database: Database, tmp_path: Path, below: str
) -> None:
    """git-sync deploys like this: the link is replaced in one step, and its old target is deleted later."""
    for name in ("first", "second"):
        root = tmp_path / name / below
        root.mkdir(parents=True)
        (root / "a.py").write_text(DAG_FILE.replace("one", name))
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "first")
    async with processing(database, link / below):
        (tmp_path / "next").symlink_to(tmp_path / "second")
        (tmp_path / "next").rename(link)
        await until(database, Dag, lambda rows: [row.description for row in rows] == ["second"])
        # The watch has moved to the link's new target.
        (link / below / "b.py").write_text(OTHER)
        await until(database, Dag, lambda rows: len(rows) == 2)


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes every folder with a given name unreadable. The name "" makes all readable again.

    A change of the folder's mode would have no effect on root.
    """
    forbidden = [""]

    @contextmanager
    def listing(path: Path) -> Iterator[Any]:
        if Path(path).name == forbidden[0]:
            raise PermissionError(13, "Permission denied")
        with os.scandir(path) as entries:
            yield entries

    system = type("System", (), {"scandir": staticmethod(listing), "DirEntry": os.DirEntry})
    monkeypatch.setattr(scanning, "os", system)

    def install(name: str) -> None:
        forbidden[0] = name

    return install


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_subfolder_that_cannot_be_read_keeps_its_dags_and_is_shown(
    database: Database,
    full: Path,
    said: list[EventDict],
    forbid: Callable[[str], None],
    is_restarted: bool,
) -> None:
    often = timedelta(seconds=0.1)
    if is_restarted:
        async with processing(database, full):
            pass
        forbid("sub")
    async with processing(database, full, min_file_process_interval=often):
        forbid("sub")
        (error,) = await shown(database, "sub")
        assert error["file"] == "sub"
        assert "Permission denied" in error["reason"]
        # Readable parts are read as before.
        (full / "a.py").unlink()
        await until(database, Dag, lambda rows: any(row.is_stale for row in rows))
        assert await in_force(database) == ({"other"}, 0)
        forbid("")
        await shown(database)
        assert await in_force(database) == ({"other"}, 0)
        (full / "sub" / "b.py").unlink()
        await until(database, Dag, lambda rows: all(row.is_stale for row in rows))
    assert [entry["path"] for entry in about(said, "error")] == [str(full / "sub")]
    assert [entry["path"] for entry in about(said, "info")] == [str(full / "sub")]
