"""The fork server reads the whole output of a JVM that has ended."""

import os
from typing import Any
from unittest.mock import Mock

import pytest

from triggerer.worker.fork_server import driver_keeper
from triggerer.worker.fork_server.control import Control, Message
from triggerer.worker.fork_server.driver_keeper import DriverKeeper
from triggerer.worker.fork_server.drivers import Driver

JVM = 4_000_000
"""A process id that Linux gives to no process by default."""


def test_a_last_line_without_a_newline_is_shown_and_tells_how_the_jvm_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers: list[int] = []

    def open_driver(
        control: Control, driver: Driver, setup: dict[str, Any], *, warms: bool
    ) -> None:
        writers.append(os.dup(driver.write_end))

    monkeypatch.setattr(driver_keeper, "open_driver", open_driver)
    server = Mock(next=None, fork_opener=lambda live: live(Mock()))
    keeper = DriverKeeper(server, {})
    run = Mock()
    keeper.hear(run, Message("open", {"number": 0, "fresh": False}, []))
    keeper.hear(Mock(), Message("started", {"pid": JVM}, []))
    (writer,) = writers
    words = b"Exception: the last words of the JVM"
    os.write(writer, words)
    os.close(writer)
    keeper.on_end(JVM, 1)
    shown = b"".join(call.args[0] for call in server.show.call_args_list)
    assert shown == words + b"\n"
    about = {"pid": JVM, "patience_s": 0}
    keeper.hear(run, Message("how_ended", {"number": 1, "about": about}, []))
    how = run.control.send.call_args.kwargs["how"]
    assert how == f"Spark's JVM ended with code 1: {words.decode()}"
