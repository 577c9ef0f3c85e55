"""Computes when the nightly cleaning is due."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Final

_NIGHT: Final = time(3)


def night_after(instant: datetime) -> datetime:
    """Return the first 03:00 after an instant, by the time zone of this machine.

    In a night when the clocks change, 03:00 may come twice, and the result is the first. If the clocks skip 03:00, the
    result is the instant at which 03:00 would have come without the change.
    """
    # `astimezone()` gives an instant a fixed offset, which ignores that the clocks may change before the night. So the
    # arithmetic is on naive datetimes: `timestamp()` asks the platform for the offset of a naive datetime.
    night = datetime.combine(instant.astimezone(), _NIGHT)
    if night.timestamp() <= instant.timestamp():
        night += timedelta(days=1)
    return datetime.fromtimestamp(night.timestamp(), UTC)
