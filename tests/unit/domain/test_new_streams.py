"""A stream that nobody has read stays closed while files are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from triggerer.domain.dag_files.new_streams import closings, may_open

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = timedelta(seconds=30)


def changes(
    never_claimed: dict[str, datetime | None], *new: str, is_start: bool = False, is_reading: bool
) -> dict[str, Any]:
    return closings(
        never_claimed,
        new=set(new),
        is_reading=is_reading,
        is_start=is_start,
        now=NOW,
        limit=LIMIT,
    )


def test_a_new_stream_is_closed_while_files_are_read_and_opened_after_it() -> None:
    assert changes({"s": None, "older": None}, "s", is_reading=True) == {"s": NOW + LIMIT}
    assert changes({"s": NOW, "older": None}, is_reading=False) == {"s": None}


def test_a_stream_is_open_at_once_if_all_files_have_been_read() -> None:
    assert changes({"s": None}, "s", is_reading=False) == {}


def test_its_time_does_not_begin_anew_with_each_file() -> None:
    assert changes({"s": NOW + LIMIT}, is_reading=True) == {}


def test_a_start_closes_all_that_was_never_read() -> None:
    """The process may have ended before all files were read, and longer ago than the limit."""
    closed = changes({"s": NOW - LIMIT, "t": None}, is_reading=True, is_start=True)
    assert closed == {"s": NOW + LIMIT, "t": NOW + LIMIT}


def test_a_stream_is_closed_for_no_longer_than_the_limit() -> None:
    assert not may_open(NOW + LIMIT, NOW)
    assert may_open(NOW, NOW)
    assert may_open(None, NOW)
