"""The work of a failed try on Spark has ended before the next try begins, or the task is not tried again."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.run_orders import order
from triggerer.config import SparkSettings
from triggerer.domain.dags import DAG
from triggerer.domain.launches import Launch
from triggerer.errors import RunFailed
from triggerer.worker.launch_reports import SessionLaunches
from triggerer.worker.launchers.connect import ConnectLauncher
from triggerer.worker.launchers.protocol import Absent, Handle, Sighting
from triggerer.worker.parallel.threads import own_task
from triggerer.worker.spark.sessions.run_session import RunSession
from triggerer.worker.spark_holder import SparkHolder


def lost(*_: Any) -> Any:
    raise ConnectionError("the connection was reset")


def forgotten(*_: Any) -> Any:
    raise RuntimeError(
        "[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver has restarted"
    )


def remote_session(
    *, interrupt: Callable[[], Any] = list, answer: Callable[..., Any] = lost
) -> Any:
    """Return a session on a Spark Connect server.

    Args:
        answer: Answers questions about the settings. By default, the server no longer answers.
    """
    session = type("Session", (), {"__module__": "pyspark.sql.connect.session"})()
    session.client = SimpleNamespace(get_config_with_defaults=answer)
    session.registerProgressHandler = lambda handler: None
    session.interruptAll = interrupt
    session.interruptTag = lambda tag: []
    session.addTag = lambda tag: None
    return session


def classic_session() -> Any:
    return SimpleNamespace(
        sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None, getConf=lost)
    )


class FakeHolder:
    """A `SparkHolder` whose session is given. `done` has the calls that end work."""

    needs_cluster = False
    is_open = True
    settings = SparkSettings()

    def __init__(self, session: Any, *, how_ended: str | None = None) -> None:
        self.session = session
        self.how_ended = how_ended
        self.done: list[str] = []

    def get(self, modules: Any) -> Any:
        return self.session

    def await_cluster(self, tell: Any) -> None:
        pass

    def interrupt(self) -> bool:
        return True

    def has_driver_ended(self) -> bool:
        return False

    def how_driver_ended(self, error: BaseException) -> str | None:
        return self.how_ended

    def kill_driver(self, reason: str) -> None:
        self.done.append("driver killed")

    def end_connect_session(self) -> None:
        self.done.append("session ended")


def run_session(holder: Any) -> RunSession:
    run = RunSession(
        holder,
        order(1),
        DAG("d"),
        (),
        home=Path(),
        on_wait=lambda wait: None,
        on_progress=lambda progress: None,
    )
    run.get()
    return run


@pytest.fixture
def parallel_task() -> Any:
    token = own_task.set("load")
    yield
    own_task.reset(token)


def test_a_connect_session_that_cannot_be_asked_is_ended_by_another_client() -> None:
    holder = FakeHolder(remote_session())
    run_session(holder).await_end()
    assert holder.done == ["session ended"]


@pytest.mark.usefixtures("parallel_task")
def test_a_task_beside_others_is_not_tried_again_if_its_work_cannot_be_asked_for() -> None:
    holder = FakeHolder(remote_session())
    with pytest.raises(RunFailed):
        run_session(holder).await_end()
    assert holder.done == []


@pytest.mark.usefixtures("parallel_task")
def test_a_task_beside_others_is_tried_again_if_the_server_was_restarted_without_its_work() -> None:
    run_session(FakeHolder(remote_session(answer=forgotten))).await_end()


def test_a_driver_that_cannot_be_asked_is_killed() -> None:
    holder = FakeHolder(classic_session())
    run_session(holder).await_end()
    assert holder.done == ["driver killed"]


def test_a_driver_that_ends_during_the_question_needs_nothing_more() -> None:
    holder = FakeHolder(classic_session(), how_ended="it was killed")
    run_session(holder).await_end()
    assert holder.done == []


@pytest.fixture
def free_address() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return f"sc://127.0.0.1:{taken.getsockname()[1]}"


def connect_holder(
    monkeypatch: pytest.MonkeyPatch, remote: str, session: Any
) -> tuple[SparkHolder, list[Launch]]:
    """Return a holder with an open session, and the list of its reports."""
    link: Any = None
    holder, reports = SparkHolder({"mode": "connect", "remote": remote}, link), list[Launch]()
    holder.begin_run(SessionLaunches(order(1, tag="one", connect=remote), reports.append))
    monkeypatch.setattr(
        "triggerer.worker.spark.sessions.connect.open_connect", lambda settings, tag: session
    )
    holder.get()
    return holder, reports


def test_an_interrupt_that_fails_is_no_interrupt(
    monkeypatch: pytest.MonkeyPatch, free_address: str
) -> None:
    holder, _ = connect_holder(monkeypatch, free_address, remote_session(interrupt=lost))
    assert not holder.interrupt()
    holder, _ = connect_holder(monkeypatch, free_address, remote_session())
    assert holder.interrupt()


def test_a_connect_session_whose_server_is_away_may_be_at_work(
    monkeypatch: pytest.MonkeyPatch, free_address: str
) -> None:
    holder, reports = connect_holder(monkeypatch, free_address, remote_session())
    with pytest.raises(
        RunFailed, match=r"may continue: the Spark Connect server .* does not answer"
    ):
        holder.end_connect_session()
    assert len(reports) == 1


def test_a_connect_session_that_its_server_has_closed_is_reported_as_ended(
    monkeypatch: pytest.MonkeyPatch, free_address: str
) -> None:
    stopped: list[str] = []

    def stop(launcher: ConnectLauncher, handle: Handle) -> Sighting:
        stopped.append(handle.tag)
        return Absent()

    monkeypatch.setattr(ConnectLauncher, "stop", stop)
    holder, reports = connect_holder(monkeypatch, free_address, remote_session())
    holder.end_connect_session()
    assert stopped == ["one"]
    assert [one.state for one in reports] == ["running", "success"]
