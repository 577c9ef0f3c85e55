"""The hosts' clocks, by which timetables read the time: virtual, and wrong by as much as a seed draws."""

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
    """How far its clock is ahead."""

    @contextmanager
    def as_here(self) -> Iterator[None]:
        """Inside the block timetables are asked on this host."""
        before = on_host.set(self)
        try:
            yield
        finally:
            on_host.reset(before)


on_host: ContextVar[Host | None] = ContextVar("on_host", default=None)
"""In the tasks of a scheduler: where it runs."""


@contextmanager
def host_clocks(true_time: Callable[[], datetime]) -> Iterator[None]:
    """Inside the block timetables read the clock of the host they are asked on; put back at the end.

    `triggerer.domain.timetables.clock.now` reads it through `datetime.now`: so that it can be set.
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
