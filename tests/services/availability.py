"""Decides for a test session whether a missing service skips or fails tests, and stores the services' logs."""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import pytest

from tests.services.process import Daemon, ServiceUnavailable

KEPT_LOGS = Path(__file__).parents[2] / ".cache" / "service-logs"


class Service(Protocol):
    """A running service, as `open_postgres`, `open_kafka` and the other openers yield it."""

    daemon: Daemon


S = TypeVar("S", bound=Service)
_open: list[Daemon] = []


@contextmanager
def service(opened: AbstractContextManager[S]) -> Iterator[S]:
    """Open a service for a fixture. If the machine lacks the service, call `skip_or_fail`."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(opened)
        except ServiceUnavailable as absent:
            skip_or_fail(str(absent))
        _open.append(server.daemon)
        stack.callback(_open.remove, server.daemon)
        yield server


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, because a service is absent. With TRIGGERER_REQUIRE_SERVICES=1, as in CI, fail it instead."""
    __tracebackhide__ = True
    if os.environ.get("TRIGGERER_REQUIRE_SERVICES") == "1":
        pytest.fail(f"TRIGGERER_REQUIRE_SERVICES=1, but: {reason}", pytrace=False)
    pytest.skip(reason)


def restart_stopped() -> None:
    """Start each open service that an earlier test has stopped or killed, and has not started again."""
    for daemon in _open:
        daemon.start()


def keep_logs() -> list[tuple[str, str]]:
    """Copy the logs of all open services to `.cache/service-logs`; return a title and the last lines of each log."""
    sections = []
    for daemon in _open:
        KEPT_LOGS.mkdir(parents=True, exist_ok=True)
        kept = KEPT_LOGS / f"{daemon.name}.log"
        shutil.copyfile(daemon.log, kept)
        sections.append((f"end of {kept}", daemon.log_tail()))
    return sections
