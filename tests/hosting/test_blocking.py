"""A host on a real database names a trigger that blocks the event loop. An isolated trigger blocks only itself."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
import structlog

from tests.hosting.test_host import declare, eventually, running, watchers
from tests.isolation import triggers
from tests.isolation.conftest import ROOT, notes_of, until
from tests.isolation.processes import isolated_processes
from tests.store.seeding import count_events
from tests.unit.streams.streams import Upstream
from triggerer.hosting import TriggerHost
from triggerer.hosting.factory import TriggerFactory
from triggerer.hosting.host import HostSettings
from triggerer.isolation import IsolationSettings, Placement
from triggerer.plugins import load_trigger_class
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.events.recorder import EventRecorder
from triggerer.streams import RuntimeContext

OBEYING = f"{triggers.HERE}.Obeying"
ALLOWED = (triggers.HERE,)


@pytest.fixture
async def database(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    async with open_database(sqlite_url) as opened:
        yield opened


@asynccontextmanager
async def hosting(
    database: Database, placements: dict[str, Placement], *, stall_threshold: float = 0.3
) -> AsyncIterator[TriggerHost]:
    recorder = EventRecorder(database, on_fenced=lambda fence: host.mark_fenced(fence))  # noqa: PLW0108
    host = TriggerHost(
        database,
        instance_id="me",
        factory=TriggerFactory(
            partial(load_trigger_class, dags_folder=None, allowed_modules=ALLOWED),
            IsolationSettings(placements, allowed_modules=ALLOWED, grace=1.0),
        ),
        runtime=RuntimeContext(recorder),
        settings=HostSettings(
            lease=timedelta(seconds=3),
            heartbeat=timedelta(seconds=0.3),
            drain=timedelta(seconds=2),
            stall_threshold=timedelta(seconds=stall_threshold),
        ),
        takes_over_at_once=True,
    )
    async with running(host, recorder):
        yield host


async def declare_two(database: Database, upstream: Upstream, notes: Path) -> None:
    """Declare two watchers of one stream: "slow" obeys the words in events, and "quick" ignores them."""
    await declare(database, "slow", upstream, classpath=OBEYING, notes=str(notes))
    await declare(database, "quick", upstream, classpath=f"{triggers.HERE}.Deaf", notes=str(notes))


async def test_the_log_names_the_watcher_that_blocks_the_loop_and_the_line(
    database: Database, upstream: Upstream, tmp_path: Path
) -> None:
    await declare_two(database, upstream, tmp_path)
    with structlog.testing.capture_logs() as lines:
        async with hosting(database, {}):
            await anyio.sleep(0.3)
            assert [line for line in lines if "stands still" in line["event"]] == []
            threading.Timer(1.0, (tmp_path / "go").touch).start()
            upstream.put((1, "block"))
            await until(lambda: upstream.outcomes() == {(1, "block"): (2, 0, 0)})
            await until(lambda: any("turns again" in line["event"] for line in lines))
    (began,) = [line for line in lines if line["event"] == "the event loop stands still"]
    assert began["trigger"] == "slow/w"
    assert began["doing"] == "waiting"
    assert "time.sleep(0.1)" in began["stack"]
    assert "isolation/triggers.py" in began["stack"]
    (ended,) = [line for line in lines if line["event"] == "the event loop turns again"]
    assert ended["trigger"] == "slow/w"
    assert 0.3 < ended["seconds"] < 10


@pytest.mark.parametrize(
    "placements",
    [{OBEYING: "thread"}, {OBEYING: "process"}, {"slow/w": "thread"}, {"slow/w": "process"}],
    ids=lambda placements: "-".join(next(iter(placements.items()))),
)
async def test_one_that_is_isolated_stalls_nobody(
    placements: dict[str, Placement], database: Database, upstream: Upstream, tmp_path: Path
) -> None:
    await declare_two(database, upstream, tmp_path)
    with structlog.testing.capture_logs() as lines:
        async with hosting(database, placements):
            upstream.put((0, "1"))
            await until(lambda: upstream.outcomes() == {(0, "1"): (2, 0, 0)})
            upstream.put((1, "block"))
            await until(lambda: "blocks" in notes_of(tmp_path, "slow"))
            upstream.put(*((number, "1") for number in range(2, 10)))
            # While the slow watcher blocks, its sibling's events become durable. Only the first message is advanced.
            await eventually(partial(_are, database, 2 + 9))
            await anyio.sleep(0.5)
            assert await count_events(database) == 2 + 9
            assert len(upstream.outcomes()) == 1
            assert (await watchers(database))["slow"][0] == "running"
            (tmp_path / "go").touch()
            await until(lambda: len(upstream.outcomes()) == 10)
            assert await count_events(database) == 20
            assert set(upstream.outcomes().values()) == {(2, 0, 0)}
    assert [line for line in lines if "stands still" in line["event"]] == []
    assert isolated_processes() == []


async def _are(database: Database, count: int) -> bool:
    return await count_events(database) == count


async def test_a_process_that_was_killed_is_shown_as_failing_and_comes_back(
    database: Database, upstream: Upstream, tmp_path: Path
) -> None:
    await declare_two(database, upstream, tmp_path)
    async with hosting(database, {OBEYING: "process"}):
        upstream.put((0, "1"))
        await until(lambda: upstream.outcomes() == {(0, "1"): (2, 0, 0)})
        (child,) = isolated_processes()
        child.kill()

        async def is_shown() -> bool:
            return (await watchers(database))["slow"] == (
                "failing",
                "The process of slow/w was killed by SIGKILL",
                "me",
            )

        await eventually(is_shown)
        upstream.put((1, "1"))

        async def is_back() -> bool:
            return (await watchers(database))["slow"] == ("running", None, "me")

        await eventually(is_back)
        upstream.put((2, "1"))
        await until(lambda: upstream.outcomes().get((2, "1")) == (2, 0, 0))
        # The watcher may have been absent at the broadcast. Then it failed the message, which was delivered again.
        assert upstream.outcomes()[1, "1"] in ((1, 1, 0), (2, 0, 0))
    assert isolated_processes() == []


async def test_stopping_ends_what_is_isolated_though_it_blocks(
    database: Database, upstream: Upstream, tmp_path: Path
) -> None:
    await declare_two(database, upstream, tmp_path)
    async with hosting(database, {OBEYING: "process"}):
        upstream.put((1, "block"))
        await until(lambda: "blocks" in notes_of(tmp_path, "slow"))
        stopping = anyio.current_time()
    assert anyio.current_time() - stopping < 8
    assert isolated_processes() == []
    assert (await watchers(database))["slow"][0] == "waiting"
