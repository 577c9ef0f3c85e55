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
    """What `open_postgres`, `open_kafka` and their like yield."""

    daemon: Daemon


S = TypeVar("S", bound=Service)
_open: list[Daemon] = []


@contextmanager
def service(opened: AbstractContextManager[S]) -> Iterator[S]:
    """Open a service for a fixture; where it is absent, skip or fail (see `skip_or_fail`)."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(opened)
        except ServiceUnavailable as absent:
            skip_or_fail(str(absent))
        _open.append(server.daemon)
        stack.callback(_open.remove, server.daemon)
        yield server


def skip_or_fail(reason: str) -> NoReturn:
    """Skip for want of a service; with TRIGGERER_REQUIRE_SERVICES=1, as in CI, fail."""
    __tracebackhide__ = True
    if os.environ.get("TRIGGERER_REQUIRE_SERVICES") == "1":
        pytest.fail(f"TRIGGERER_REQUIRE_SERVICES=1, but: {reason}", pytrace=False)
    pytest.skip(reason)


def restart_stopped() -> None:
    """Start what an earlier test stopped or killed and, failing, left so."""
    for daemon in _open:
        daemon.start()


def keep_logs() -> list[tuple[str, str]]:
    """Copy all open services' logs to `.cache/service-logs`; titles and ends, for a report."""
    sections = []
    for daemon in _open:
        KEPT_LOGS.mkdir(parents=True, exist_ok=True)
        kept = KEPT_LOGS / f"{daemon.name}.log"
        shutil.copyfile(daemon.log, kept)
        sections.append((f"end of {kept}", daemon.log_tail()))
    return sections
