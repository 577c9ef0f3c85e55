"""How the service's parts live and die together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from structlog.testing import capture_logs

from triggerer.config import Settings, load_settings
from triggerer.errors import ConfigurationError, PluginError
from triggerer.service import ALL_PARTS, Part, Service, StopReason, open_service, run, running
from triggerer.service.supervising import unless_it_returns

Start = Callable[..., Awaitable[None]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(
        environ={"TRIGGERER__CORE__HOME": str(tmp_path), "TRIGGERER__API__PORT": "0"}
    )


def hosting(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[TaskGroup, TaskGroup], Awaitable[None]]
) -> None:
    """Let `start` stand for all parts; the database and the wakeups are real."""

    async def start_parts(
        settings: Settings,
        parts: object,
        database: object,
        background: TaskGroup,
        workers: TaskGroup,
        readiness: object,
    ) -> None:
        await start(background, workers)

    monkeypatch.setattr(running, "start_parts", start_parts)


async def fails(**_: Any) -> None:
    raise ValueError("a bug")


async def returns(**_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [(fails, ValueError, "a bug"), (returns, RuntimeError, "the scheduler ended")],
)
async def test_a_part_that_fails_or_returns_ends_the_service_with_the_error(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    part: Any,
    error: type[Exception],
    message: str,
) -> None:
    async def start(background: TaskGroup, workers: TaskGroup) -> None:
        workers.start_soon(unless_it_returns, "scheduler", part)

    hosting(monkeypatch, start)
    with pytest.RaisesGroup(
        pytest.RaisesExc(error, match=message), flatten_subgroups=True, allow_unwrapped=True
    ):
        async with open_service(settings, ALL_PARTS):
            await anyio.sleep_forever()


async def test_a_part_that_others_need_stops_after_them(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    order: list[str] = []

    async def living(name: str, *, last_words: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(last_words):
                    await anyio.lowlevel.checkpoint()
            order.append(name)

    async def start(background: TaskGroup, workers: TaskGroup) -> None:
        async def recorder() -> None:
            await living("recorder", last_words=0)

        async def streams() -> None:
            await living("streams", last_words=10)

        background.start_soon(recorder)
        workers.start_soon(streams)

    hosting(monkeypatch, start)
    async with open_service(settings, ALL_PARTS):
        await anyio.lowlevel.checkpoint()
    assert order == ["streams", "recorder"]


async def test_a_failure_of_the_block_is_not_hidden_by_the_shutdown(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    async def start(background: TaskGroup, workers: TaskGroup) -> None:
        workers.start_soon(anyio.sleep_forever)

    hosting(monkeypatch, start)
    with pytest.RaisesGroup(
        pytest.RaisesExc(LookupError, match="mine"), flatten_subgroups=True, allow_unwrapped=True
    ):
        async with open_service(settings, ALL_PARTS):
            raise LookupError("mine")


async def test_the_log_says_by_plain_names_what_has_started(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    async def start(background: TaskGroup, workers: TaskGroup) -> None:
        pass

    hosting(monkeypatch, start)
    with capture_logs() as logs:
        async with open_service(settings, ALL_PARTS):
            pass
    (started,) = (log for log in logs if log["event"] == "started")
    assert (
        repr(started["parts"]) == "['api', 'dag-processor', 'executor', 'scheduler', 'triggerer']"
    )


def test_a_service_with_work_ends_when_the_work_is_done(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    async def start(background: TaskGroup, workers: TaskGroup) -> None:
        pass

    hosting(monkeypatch, start)
    monkeypatch.setattr("triggerer.service.running.share_connections", lambda settings: None)
    done: list[str] = []

    async def work(started: Service) -> None:
        done.append(started.database.dialect)

    assert run(settings, ALL_PARTS, work) is StopReason.WORK_DONE
    assert done == ["sqlite"]


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_a_plugin_that_ends_the_event_loop_is_no_stop_in_order(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, error: BaseException
) -> None:
    async def start(background: TaskGroup, workers: TaskGroup) -> None:
        pass

    def end() -> None:
        raise error

    async def work(_: Service) -> None:
        # Raises like a task that a plugin started.
        asyncio.get_running_loop().call_soon(end)
        await anyio.sleep_forever()

    hosting(monkeypatch, start)
    monkeypatch.setattr("triggerer.service.running.share_connections", lambda settings: None)
    with capture_logs() as logs, pytest.raises(PluginError, match=type(error).__name__):
        run(settings, ALL_PARTS, work)
    assert "code of a plugin ended the event loop" in [log["event"] for log in logs]


@pytest.mark.parametrize("parts", [ALL_PARTS, frozenset({Part.DAG_PROCESSOR})])
def test_a_dags_folder_that_was_named_has_to_exist(tmp_path: Path, parts: frozenset[Part]) -> None:
    """An earlier version accepted a mistyped name, and every DAG became stale."""
    environ = {
        "TRIGGERER__CORE__HOME": str(tmp_path),
        "TRIGGERER__CORE__DAGS_FOLDER": str(tmp_path / "dgas"),
        "TRIGGERER__DATABASE__URL": "" if parts == ALL_PARTS else "postgresql://nowhere/db",
    }
    with pytest.raises(ConfigurationError, match=r"no DAGs folder .*dgas.*--dags-folder"):
        run(load_settings(environ=environ), parts)


def test_a_service_starts_before_there_is_a_default_dags_folder(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    async def start(background: TaskGroup, workers: TaskGroup) -> None:
        pass

    async def work(started: Service) -> None:
        assert not started.settings.core.dags_folder.exists()

    hosting(monkeypatch, start)
    monkeypatch.setattr("triggerer.service.running.share_connections", lambda settings: None)
    assert run(settings, ALL_PARTS, work) is StopReason.WORK_DONE
