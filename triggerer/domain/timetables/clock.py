"""The only module of timetables that reads the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final

_SET_BACK: Final = ContextVar("timetables_set_back", default=timedelta())


def now() -> datetime:
    """Return the current UTC instant. Tests can freeze it, because it calls `datetime.now`."""
    return datetime.now(UTC) - _SET_BACK.get()


@contextmanager
def clock_set_back(by: timedelta) -> Iterator[None]:
    """Within the block, let `now` return an earlier instant. Blocks inside one another add up."""
    token = _SET_BACK.set(_SET_BACK.get() + by)
    try:
        yield
    finally:
        _SET_BACK.reset(token)
