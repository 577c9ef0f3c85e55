"""A mark identifies one call of a writer, such as `output.parquet`, in one try of a task.

This module is sent to Spark Connect servers, so it imports nothing of ours.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

STALE_AFTER_S: Final = 7 * 24 * 3600
"""A draft of another run is not deleted before this age, because that run may still be writing it."""
_TIME_DIGITS: Final = 8
_TRY_DIGITS: Final = 8


def new_try() -> str:
    """Return 8 hexadecimal digits that no other try of a task has."""
    return secrets.token_hex(_TRY_DIGITS // 2)


def new_mark(of_try: str, call: int) -> str:
    """Return the mark of a call that begins now: the time in seconds, the try, and the call's number in the try."""
    return f"{_time_digits(time.time())}{of_try}_{call}"


def are_of_one_try(mark: str, other: str) -> bool:
    """Return whether two calls belong to the same try of a task."""
    tries = [one[_TIME_DIGITS : _TIME_DIGITS + _TRY_DIGITS] for one in (mark, other)]
    return tries[0] == tries[1]


def is_stale(mark: str) -> bool:
    """Return whether the call began more than a week ago. Other calls may delete its draft, so it must not commit."""
    # All times have eight hexadecimal digits, so their texts sort like the times.
    return mark[:_TIME_DIGITS] < _time_digits(time.time() - STALE_AFTER_S)


def _time_digits(seconds: float) -> str:
    return f"{int(seconds):0{_TIME_DIGITS}x}"
