"""Computes when the nightly cleaning is due."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Final

_HOUR: Final = 3


def night_after(instant: datetime, zone: tzinfo | None = None) -> datetime:
    """Return the first 03:00 after an instant.

    Args:
        zone: The time zone of the nights. None: the time zone of this machine.
    """
    local = instant.astimezone(zone)
    night = local.replace(hour=_HOUR, minute=0, second=0, microsecond=0)
    return night if night > local else night + timedelta(days=1)
