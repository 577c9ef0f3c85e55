"""Time zones as timetables accept, store and show them."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from triggerer.errors import DagError

Zone: TypeAlias = "ZoneInfo | timezone"

_SECOND: Final = timedelta(seconds=1)


def checked_zone(value: object) -> Zone:
    """Return the zone of a name ("Europe/Paris"), a `tzinfo`, or an offset to UTC in seconds.

    Raises:
        DagError: There is no such zone, or the zone has no name to store.
    """
    match value:
        case "UTC":
            return UTC
        case str(name):
            return _named(name)
        case timezone():
            return UTC if value.utcoffset(None) == timedelta(0) else timezone(value.utcoffset(None))
        case bool():
            pass
        case int(offset_s) if abs(offset_s) < 24 * 3600:
            return UTC if offset_s == 0 else timezone(timedelta(seconds=offset_s))
        case tzinfo():
            # ZoneInfo has a key. Zones of libraries that build on ZoneInfo have a key, too.
            if isinstance(key := getattr(value, "key", None), str):
                return checked_zone(key)
    raise DagError(
        f"{value!r} is no time zone with a name",
        hint='give its name, such as "Europe/Paris", or zoneinfo.ZoneInfo',
    )


def zone_to_json(zone: Zone) -> str | int:
    """Return the zone as `checked_zone` accepts it: the name, or the offset in seconds."""
    if isinstance(zone, ZoneInfo):
        return zone.key
    if zone is UTC:
        return "UTC"
    return int(zone.utcoffset(None).total_seconds())


def zone_name(zone: Zone) -> str:
    """Return the name for people."""
    return zone.key if isinstance(zone, ZoneInfo) else str(zone)


def with_zone(text: str, zone: Zone) -> str:
    """Return the text, with the zone's name unless the zone is UTC."""
    return text if zone is UTC else f"{text} ({zone_name(zone)})"


def start_of_day(day: date, zone: tzinfo) -> datetime:
    """Return the first UTC instant of a day, even if its midnight occurs twice or not at all."""
    # If midnight occurs twice, return the first one. If it is skipped, return the instant of the clock change.
    return datetime.combine(day, time(0), tzinfo=zone).astimezone(UTC)


def first_shown(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first instant at which the zone's clock shows the time `wall` or later, as a time in the zone.

    Args:
        wall: A clock time without a zone. If it occurs twice, its `fold` says which occurrence is meant.
    """
    moment = wall.replace(tzinfo=zone)
    before, after = _offset(moment.replace(fold=0)), _offset(moment.replace(fold=1))
    if before >= after:
        return moment
    # The clock skips this time. Search for the clock change.
    earliest = wall.replace(microsecond=0, tzinfo=UTC) - after
    seconds = range((after - before) // _SECOND + 1)

    def at(second: int) -> datetime:
        return (earliest + second * _SECOND).astimezone(zone)

    return at(bisect_left(seconds, True, key=lambda second: _offset(at(second)) == after))


def _offset(moment: datetime) -> timedelta:
    offset = moment.utcoffset()
    assert offset is not None
    return offset


def _named(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # The name of a folder of zones ("America") raises OSError, and a path raises ValueError.
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise DagError(
            f"there is no time zone {name!r}", hint='for instance "UTC" or "Europe/Paris"'
        ) from error
