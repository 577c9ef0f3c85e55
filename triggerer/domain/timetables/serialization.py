"""Writes timetables as JSON, and reads them back.

A stored timetable is a name and arguments. The name is one of our own, or the name of an entry point in the group
`triggerer.timetables`. So a value in the database can never make a process import any other module.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from triggerer.domain.timetables.base import Timetable
from triggerer.errors import DagError, PluginError

GROUP: Final = "triggerer.timetables"

BUILT_IN: Final = {
    "AfterWorkdayTimetable": "workdays",
    "AllOf": "combined",
    "AnyOf": "combined",
    "AssetAndTimeSchedule": "with_assets",
    "AssetOrTimeSchedule": "with_assets",
    "Consecutive": "reshaped",
    "ContinuousTimetable": "continuous",
    "CronDataIntervalTimetable": "cron.intervals",
    "CronPartitionTimetable": "cron.partitions",
    "CronTriggerTimetable": "cron.triggers",
    "Delayed": "reshaped",
    "DeltaDataIntervalTimetable": "delta.intervals",
    "DeltaTriggerTimetable": "delta.triggers",
    "EventsTimetable": "events",
    "Except": "combined",
    "ExceptDays": "combined",
    "Keyed": "keyed",
    "MultipleCronTriggerTimetable": "cron.several",
    "NullTimetable": "never",
    "OnceTimetable": "once",
    "PartitionedAssetTimetable": "partitioned",
    "RollUp": "reshaped",
    "RollingWindow": "reshaped",
    "WorkdaysOfMonthTimetable": "workdays",
}
"""The modules of our own timetables, relative to this package, by the names in stored schedules."""


def timetable_to_json(timetable: Timetable) -> dict[str, Any]:
    """Return the JSON that is stored: `{"type": name, "arguments": {...}}`.

    Raises:
        DagError: The timetable's class is neither ours nor installed by entry point.
    """
    return {"type": _name_of(type(timetable)), "arguments": timetable.serialize()}


def timetable_from_json(value: Any) -> Timetable:
    """Return the stored timetable.

    Raises:
        DagError: `timetable_to_json` did not write the value, or the class no longer accepts the arguments.
        PluginError: The entry point is missing, or cannot be loaded.
    """
    match value:
        case {"type": str(name), "arguments": dict(arguments)}:
            pass
        case _:
            raise DagError(f"not a timetable: {value!r}")
    kind = _built_in(name) or _load(name)
    try:
        return kind.deserialize(arguments)
    except (DagError, PluginError):
        raise
    except Exception as error:
        raise DagError(f"timetable {name} cannot be read from {arguments!r}: {error}") from error


def installed_timetables() -> dict[str, type[Timetable]]:
    """Return the timetables of all entry points by name, except timetables that cannot be loaded."""
    found = {}
    for name in _points():
        try:
            found[name] = _load(name)
        except PluginError:
            # Only a DAG that uses this timetable gets the error.
            continue
    return found


def _built_in(name: str) -> type[Timetable] | None:
    if name not in BUILT_IN:
        return None
    module = import_module(f"{__package__}.{BUILT_IN[name]}")
    kind: type[Timetable] = getattr(module, name)
    return kind


def _name_of(kind: type[Timetable]) -> str:
    if _built_in(kind.__name__) is kind:
        return kind.__name__
    for name, other in installed_timetables().items():
        if other is kind:
            return name
    raise DagError(
        f"{kind.__module__}.{kind.__qualname__} is not installed as a timetable",
        hint=f"give its package an entry point in the group {GROUP}",
    )


@lru_cache(maxsize=1)
def _points() -> dict[str, EntryPoint]:
    """Return the entry points by name, except entry points with the name of a built-in timetable.

    The result is cached, because installed packages do not change in a process.
    """
    return {one.name: one for one in entry_points(group=GROUP) if one.name not in BUILT_IN}


def _load(name: str) -> type[Timetable]:
    point = _points().get(name)
    if point is None:
        raise PluginError(
            f"there is no timetable {name!r}",
            hint=f"install the package with its entry point in the group {GROUP}",
        )
    try:
        kind = point.load()
    except Exception as error:
        raise PluginError(
            f"timetable {name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(kind, type) or not issubclass(kind, Timetable):
        raise PluginError(f"timetable {name!r} is no Timetable: {point.value}")
    return kind
