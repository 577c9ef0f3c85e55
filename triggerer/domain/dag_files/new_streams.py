"""Decides how long a stream that was never read stays closed. No I/O.

An open stream commits the messages that its watchers have processed. A watcher whose DAG file is read later would miss
those messages. So a new stream stays closed until all DAG files that were found have been read, or a time limit has
passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import datetime, timedelta


def closings(
    never_claimed: Mapping[str, datetime | None],
    *,
    new: Set[str],
    is_reading: bool,
    is_start: bool,
    now: datetime,
    limit: timedelta,
) -> dict[str, datetime | None]:
    """Return until when streams stay closed, by digest; None: the stream may be opened now.

    Streams whose instant stays the same are left out.

    Args:
        never_claimed: For each stream that no instance has claimed yet, the instant until which the stream is closed.
            None: the stream is not closed.
        new: The digests of the streams that the caller's transaction has created.
        is_reading: True if a new or changed file has been seen but not read.
        is_start: True if the DAG processor has just started. The previous DAG processor may have ended before it had
            read all files. So all streams that were never claimed stay closed, not only the new ones.
        now: The database's time.
        limit: The longest time that a stream stays closed, in case the DAG processor hangs or dies.
    """
    if not is_reading:
        return {digest: None for digest, until in never_claimed.items() if until is not None}
    closing = never_claimed.keys() if is_start else new & never_claimed.keys()
    return dict.fromkeys(closing, now + limit)


def may_open(closed_until: datetime | None, now: datetime) -> bool:
    """True if the stream can be opened now."""
    return closed_until is None or closed_until <= now
