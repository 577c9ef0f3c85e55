"""Marks: each try of an output has its own. Spark's servers receive this module, so it imports nothing of ours."""

from __future__ import annotations

import secrets
import time
from typing import Final

STALE_AFTER_S: Final = 7 * 24 * 3600
"""A draft of another run is not deleted before this age, because that run may still be writing it."""
_TIME_DIGITS: Final = 8


def new_mark() -> str:
    """Return 16 hexadecimal digits: 8 for the time in seconds, and 8 random ones."""
    return f"{_time_digits(time.time())}{secrets.token_hex(4)}"


def is_stale(mark: str) -> bool:
    """Return whether the try with this mark began so long ago that no run continues it."""
    return mark[:_TIME_DIGITS] < oldest_fresh()


def oldest_fresh() -> str:
    """Return the first 8 digits of the oldest mark that is not stale. Marks sort by time."""
    return _time_digits(time.time() - STALE_AFTER_S)


def _time_digits(seconds: float) -> str:
    return f"{int(seconds):0{_TIME_DIGITS}x}"
