"""The clocks of the hosts on which timetables run. They show virtual time, plus an error drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, cast

from triggerer.domain.timetables import clock


@dataclass(slots=True)
class Host:
    """A machine on which a scheduler runs."""

    skew: timedelta = field(default_factory=timedelta)
    """How far the machine's clock is ahead of virtual time."""

    @contextmanager
    def as_here(self) -> Iterator[None]:
        """Inside the block, timetables read this host's clock."""
        before = on_host.set(self)
        try:
            yield
        finally:
            on_host.reset(before)


on_host: ContextVar[Host | None] = ContextVar("on_host", default=None)
"""The host of the scheduler that runs in the current task."""


@contextmanager
def host_clocks(true_time: Callable[[], datetime]) -> Iterator[None]:
    """Inside the block, timetables read the clock of the current task's host.

    The block replaces the `datetime` that `triggerer.domain.timetables.clock.now` reads, and restores it at the end.
    """

    class HostTime:
        @staticmethod
        def now(_: tzinfo) -> datetime:
            host = on_host.get()
            return true_time() + (timedelta() if host is None else host.skew)

    module = cast("Any", clock)
    before = module.datetime
    module.datetime = HostTime
    try:
        yield
    finally:
        module.datetime = before
