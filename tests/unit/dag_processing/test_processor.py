"""The DAG processor with real children, real files and SQLite."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs
from watchfiles._rust_notify import WatchfilesRustInternalError

from tests.unit.dag_processing.processing import DAG_FILE, every, processing, until
from triggerer.dag_processing import watching
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.schema.models import Dag, DagFile, Watcher


async def test_the_folders_definitions_are_stored_when_the_processor_has_started(
    database: Database, folder: Path
) -> None:
    (folder / "a.py").write_text(DAG_FILE)
    async with processing(database, folder):
        (dag,) = await every(database, Dag)
        (watcher,) = await every(database, Watcher)
    assert (dag.dag_id, dag.path, watcher.name) == ("d", "a.py", "w")


@pytest.mark.parametrize(
    ("count", "told"), [(2, {"dags": 2, "dag_ids": ["d0", "d1"]}), (1000, {"dags": 1000})]
)
async def test_the_log_counts_dags_and_names_those_that_are_few(
    database: Database, folder: Path, count: int, told: dict[str, object]
) -> None:
    dags = (f"with DAG('d{number}'):\n    pass\n" for number in range(count))
    (folder / "a.py").write_text(f"from triggerer import DAG\n{''.join(dags)}")
    with capture_logs() as lines:
        async with processing(database, folder):
            with anyio.fail_after(60):
                while not lines:  # noqa: ASYNC110  (the processor logs what it has stored)
                    await anyio.sleep(0.02)
    assert lines == [{"event": "DAG files stored", "log_level": "info", "streams": 0, **told}]


async def test_the_log_tells_what_is_wrong_and_what_is_doubtful_once(
    database: Database, folder: Path
) -> None:
    doubtful = "import warnings\n\nwarnings.warn('hardly meant')\n"
    (folder / "a.py").write_text(f"{doubtful}{DAG_FILE}")
    (folder / "b.py").write_text("raise ValueError('not today')\n")
    (folder / "c.py").write_text("from triggerer import DAG\nwith DAG('d'): pass\n")
    with capture_logs() as lines:
        async with processing(database, folder):
            with anyio.fail_after(60):
                while len(lines) < 4:  # noqa: ASYNC110  (the processor logs what it has stored)
                    await anyio.sleep(0.02)
            (folder / "e.py").write_text("")
            await until(database, DagFile, lambda rows: len(rows) == 4)
    told = [(one["log_level"], one["file"], one["line"]) for one in lines if "file" in one]
    assert told == [("error", "b.py", 1), ("error", "c.py", 2), ("warning", "a.py", 3)]
    assert [one["reason"] for one in lines if one.get("file") == "a.py"] == [
        "UserWarning: hardly meant"
    ]


@pytest.mark.parametrize(
    ("count", "told"), [(2, {"files": 2, "paths": ["f0.py", "f1.py"]}), (30, {"files": 30})]
)
async def test_the_log_counts_files_that_go_and_names_those_that_are_few(
    database: Database, folder: Path, count: int, told: dict[str, object]
) -> None:
    paths = [folder / f"f{number}.py" for number in range(count)]
    for path in paths:
        path.write_text("")
    async with processing(database, folder):
        await until(database, DagFile, lambda rows: len(rows) == count)
    # Delete the files while no processor runs. Otherwise a scan could see a part of the files gone.
    for path in paths:
        path.unlink()
    missing = "DAG files are missing; what they define stays as it was until they count as deleted"
    with capture_logs() as lines:
        async with processing(database, folder, removal_grace=timedelta(seconds=1)):
            with anyio.fail_after(60):
                while len(lines) < 2:  # noqa: ASYNC110  (the processor logs what it has noticed)
                    await anyio.sleep(0.02)
    assert lines == [
        {"event": missing, "log_level": "warning", "removal_grace_s": 1.0, **told},
        {"event": "DAG files are deleted", "log_level": "info", **told},
    ]


async def test_new_changed_and_deleted_files_are_noticed_at_once(
    database: Database, folder: Path
) -> None:
    async with processing(database, folder):
        (folder / "a.py").write_text(DAG_FILE)
        await until(database, Dag, lambda rows: [row.description for row in rows] == ["one"])
        (before,) = await every(database, Watcher)
        (folder / "a.py").write_text(DAG_FILE.replace("one", "two").replace("Mine(1)", "Mine(2)"))
        await until(database, Dag, lambda rows: [row.description for row in rows] == ["two"])
        (after,) = await every(database, Watcher)
        assert after.id == before.id
        assert after.trigger_id != before.trigger_id
        (folder / "a.py").unlink()
        await until(database, Dag, lambda rows: [row.is_stale for row in rows] == [True])
        assert [row.trigger_id for row in await every(database, Watcher)] == [None]


async def test_a_file_that_breaks_keeps_its_dags_and_shows_the_error(
    database: Database, folder: Path
) -> None:
    (folder / "a.py").write_text(DAG_FILE)
    async with processing(database, folder):
        (folder / "a.py").write_text(DAG_FILE + "\n)\n")
        (found,) = await until(database, DagFile, lambda rows: bool(rows[0].errors))
        assert found.errors[0]["file"] == "a.py"
        assert found.errors[0]["line"] == DAG_FILE.count("\n") + 2
        assert "syntax error" in found.errors[0]["reason"]
        assert [row.is_stale for row in await every(database, Dag)] == [False]
        assert len(await every(database, Watcher)) == 1
        (folder / "a.py").write_text(DAG_FILE)
        await until(database, DagFile, lambda rows: not rows[0].errors)


async def test_a_file_is_read_again_when_what_it_imports_changes(
    database: Database, folder: Path
) -> None:
    (folder / "helper.py").write_text("text = 'first'\n")
    (folder / "a.py").write_text(
        DAG_FILE.replace("description=", "description=helper.text or ").replace(
            "from triggerer.abc", "import helper\nfrom triggerer.abc"
        )
    )
    async with processing(database, folder):
        assert [row.description for row in await every(database, Dag)] == ["first"]
        (folder / "helper.py").write_text("text = 'other'\n")
        await until(database, Dag, lambda rows: rows[0].description == "other")


async def test_a_file_that_hangs_delays_no_other_and_is_shown(
    database: Database, folder: Path
) -> None:
    (folder / "a.py").write_text(DAG_FILE)
    (folder / "hangs.py").write_text("x = 1\nwhile True:\n    pass\n")
    async with processing(database, folder, file_timeout=timedelta(seconds=3)):
        assert [row.dag_id for row in await every(database, Dag)] == ["d"]
        assert [row.path for row in await every(database, DagFile)] == ["a.py"]
        found = await until(database, DagFile, lambda rows: len(rows) == 2)
    errors = {row.path: row.errors for row in found}
    assert errors["a.py"] == []
    assert "took longer than 3" in errors["hangs.py"][0]["reason"]
    assert errors["hangs.py"][0]["line"] in {2, 3}


async def test_a_parser_that_is_killed_is_started_again(database: Database, folder: Path) -> None:
    async with processing(database, folder) as processor:
        first = processor.parser_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        (folder / "a.py").write_text(DAG_FILE)
        await until(database, Dag, lambda rows: len(rows) == 1)
        assert processor.parser_pid not in {None, first}


async def test_a_processor_that_is_cancelled_does_not_wait_for_its_watch(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch waits in a thread. If nothing woke the thread, it would notice the cancellation only after 60 s."""
    monkeypatch.setattr(watching, "awatch", partial(watching.awatch, rust_timeout=60_000))
    (folder / "a.py").write_text(DAG_FILE)
    async with processing(database, folder):
        began = anyio.current_time()
    assert anyio.current_time() - began < 30


async def test_files_that_were_deleted_while_no_service_ran_are_noticed_at_the_start(
    database: Database, folder: Path
) -> None:
    (folder / "a.py").write_text(DAG_FILE)
    async with processing(database, folder):
        pass
    (folder / "a.py").unlink()
    async with processing(database, folder):
        assert [row.is_stale for row in await every(database, Dag)] == [True]


async def test_a_restart_announces_nothing_when_nothing_changed(
    database: Database, folder: Path
) -> None:
    (folder / "a.py").write_text(DAG_FILE)
    with database.wakeups.subscribe(Signal.DAGS_CHANGED, Signal.STREAMS_CHANGED) as subscription:
        async with processing(database, folder):
            assert subscription.take_nowait()[Signal.DAGS_CHANGED] == {"d"}
        async with processing(database, folder):
            assert subscription.take_nowait() == {}


async def test_a_change_that_nobody_reported_is_found_by_the_periodic_look(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def blind(*_: object, **__: object) -> AsyncIterator[None]:
        await anyio.sleep_forever()
        yield

    monkeypatch.setattr("triggerer.dag_processing.watching.awatch", blind)
    interval = timedelta(milliseconds=100)
    async with processing(database, folder, min_file_process_interval=interval):
        (folder / "a.py").write_text(DAG_FILE)
        await until(database, Dag, lambda rows: len(rows) == 1)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        # Each user has 128 inotify instances by default, shared by all pods of a Kubernetes node.
        (WatchfilesRustInternalError("Too many open files"), "Too many open files"),
        (ExceptionGroup("", [RuntimeError("can't start new thread")]), "can't start new thread"),
    ],
)
async def test_a_folder_that_the_system_does_not_watch_is_looked_through_at_intervals(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    async def refuse(*_: object, **__: object) -> AsyncIterator[None]:
        raise error
        yield

    monkeypatch.setattr(watching, "awatch", refuse)
    interval = timedelta(milliseconds=100)
    with capture_logs() as logs:
        async with processing(database, folder, min_file_process_interval=interval):
            (folder / "a.py").write_text(DAG_FILE)
            await until(database, Dag, lambda rows: len(rows) == 1)
    said = [log["error"] for log in logs if log["event"] == "Cannot watch the DAGs folder"]
    assert said == [told]


async def test_stopping_leaves_no_process_behind(database: Database, folder: Path) -> None:
    pid_file = folder.parent / "pid"
    (folder / "hangs.py").write_text(
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    async with processing(database, folder) as processor:
        parser = processor.parser_pid
        fork = int(pid_file.read_text())
    assert parser is not None
    for pid in (parser, fork):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
