"""Schedules of DAGs: assets, time, both, or partitions. None means that all runs are triggered manually."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import (
    AssetAll,
    AssetAny,
    Condition,
    condition_from_json,
    condition_to_json,
)
from triggerer.domain.text.storable import check_partition_key
from triggerer.errors import DagError, InvalidPartitionKey

# The timetables are imported inside functions, because importing the cron parser takes a tenth of a second. Many
# commands and workers do not need the parser.
if TYPE_CHECKING:
    from triggerer.domain.timetables import (
        DagRunInfo,
        DataInterval,
        PartitionedAssetTimetable,
        TimeRestriction,
        Timetable,
    )


@dataclass(frozen=True, slots=True)
class OnAssets:
    """A run starts when the expression is true, and takes the DAG's queued events: at most `events_per_run` per asset.

    A run of `(a & b) | c` that starts because of `c` also takes a queued event of `a`.
    """

    condition: Condition


@dataclass(frozen=True, slots=True)
class OnTime:
    """A run starts whenever the timetable says so."""

    timetable: Timetable


@dataclass(frozen=True, slots=True)
class OnEither:
    """Makes a run without events whenever the timetable says so, and runs with events as `OnAssets` does."""

    timetable: Timetable
    condition: Condition


@dataclass(frozen=True, slots=True)
class OnBoth:
    """A run starts with the queued events once the timetable's next run is due and the expression is true."""

    timetable: Timetable
    condition: Condition


@dataclass(frozen=True, slots=True)
class OnPartitions:
    """A run for a partition key starts once the events for that key make the expression true.

    Mappers are stored as `triggerer.partitions` writes them.
    """

    condition: Condition
    default_mapper: Mapping[str, Any] = field(hash=False)
    mappers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """By asset name, the mappers that replace `default_mapper` for single assets."""


Schedule: TypeAlias = OnAssets | OnTime | OnEither | OnBoth | OnPartitions


def schedule_of(value: object, *, timezone: tzinfo = UTC) -> Schedule | None:
    """Return the schedule that `DAG(schedule=...)` describes; None: only manual runs.

    Args:
        timezone: The zone of a cron expression.
    Raises:
        DagError: The value is no schedule.
    """
    match value:
        case None:
            return None
        case OnAssets() | OnTime() | OnEither() | OnBoth() | OnPartitions():
            return value
        case Asset() | AssetAlias() | AssetAll() | AssetAny():
            return OnAssets(value)
        case []:
            raise DagError(
                "an empty list is no schedule", hint="for runs by hand only, write schedule=None"
            )
        case list() | tuple() if value:
            return OnAssets(AssetAll(*value))
    from triggerer.domain.timetables import (
        AssetAndTimeSchedule,
        AssetOrTimeSchedule,
        NullTimetable,
        PartitionedAssetTimetable,
        Timetable,
        timetable_of,
    )

    match value:
        case AssetOrTimeSchedule(timetable=timetable, assets=assets):
            return OnEither(timetable, assets)
        case AssetAndTimeSchedule(timetable=timetable, assets=assets):
            return OnBoth(timetable, assets)
        case PartitionedAssetTimetable():
            return _partitioned(value)
        case NullTimetable():
            return None
        case str() | timedelta() | Timetable():
            found = timetable_of(value, timezone=timezone)
            return None if isinstance(found, NullTimetable) else OnTime(found)
    raise DagError(
        f"{value!r} is no schedule",
        hint="use None, an asset, a list of assets, an expression, an alias, a cron expression or preset, "
        "a timedelta or a timetable",
    )


def _partitioned(timetable: PartitionedAssetTimetable) -> OnPartitions:
    from triggerer.domain.partitions import mapper_to_json

    return OnPartitions(
        timetable.assets,
        mapper_to_json(timetable.default_partition_mapper),
        {asset.name: mapper_to_json(mapper) for asset, mapper in timetable.mappers},
    )


def condition_of(schedule: Schedule | None) -> Condition | None:
    """Return the schedule's asset expression; None: the schedule waits for no assets."""
    match schedule:
        case OnAssets(condition) | OnEither(_, condition) | OnBoth(_, condition):
            return condition
        case OnPartitions(condition):
            return condition
        case OnTime() | None:
            return None


def timetable_in(schedule: Schedule | None) -> Timetable | None:
    """Return the schedule's timetable; None: the schedule waits for no time."""
    match schedule:
        case OnTime(timetable) | OnEither(timetable, _) | OnBoth(timetable, _):
            return timetable
        case OnAssets() | OnPartitions() | None:
            return None


def next_info(
    schedule: Schedule | None, last: DataInterval | None, restriction: TimeRestriction
) -> DagRunInfo | None:
    """Return the next run of the schedule's timetable, even if it is due later; None: no run.

    Args:
        last: The data interval of the timetable's last run.
    """
    timetable = timetable_in(schedule)
    if timetable is None:
        return None
    return timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)


def partition_key_of(schedule: Schedule | None, interval: DataInterval) -> str | None:
    """Return the partition key that the schedule's timetable makes from a data interval; None: no key.

    Raises:
        RowRefused: The timetable returned something that cannot be a partition key.
    """
    timetable = timetable_in(schedule)
    key = None if timetable is None else timetable.partition_key(interval)
    if key is not None:
        check_partition_key(key)
    return key


def run_of_key(schedule: Schedule | None, key: str) -> DagRunInfo | None:
    """Return the first run of the schedule's timetable with this partition key.

    None: there is no timetable, or the timetable's keys do not name dates. (`2026-03-10` names a date, `eu` does not.)

    Raises:
        InvalidPartitionKey: The timetable's keys name dates, but none of its runs has this key.
    """
    timetable = timetable_in(schedule)
    date = None if timetable is None else timetable.to_partition_date(key)
    if timetable is None or date is None:
        return None
    restriction = timetable.restriction_between(date, date)._replace(latest=None)
    last: DataInterval | None = None
    while (
        info := timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=restriction
        )
    ) is not None:
        if info.logical_date >= date:
            if timetable.partition_key(info.data_interval) == key:
                return info
            break
        if last is not None and info.logical_date <= last.start:
            break
        last = info.data_interval
    raise InvalidPartitionKey(
        f"no data interval of {timetable.summary} has the partition key {key!r}",
        key=key,
        hint="`triggerer dags next` shows how keys are written",
    )


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as the store writes it.

    - `OnAssets`: the expression as `triggerer.domain.conditions` writes it
    - `OnTime`: `{"timetable"}`
    - `OnEither`: `{"either": {"timetable", "assets"}}`
    - `OnBoth`: `{"both": {"timetable", "assets"}}`
    - `OnPartitions`: `{"partitioned": {"assets", "default_mapper", "mappers"}}`

    Raises:
        DagError: No entry point provides the timetable.
    """
    match schedule:
        case OnAssets(condition):
            return condition_to_json(condition)
        case OnPartitions(condition, default, mappers):
            assets = condition_to_json(condition)
            parts = {"assets": assets, "default_mapper": dict(default), "mappers": dict(mappers)}
            return {"partitioned": parts}
    from triggerer.domain.timetables import timetable_to_json

    timetable = timetable_to_json(schedule.timetable)
    match schedule:
        case OnTime():
            return {"timetable": timetable}
        case OnEither(_, condition):
            return {"either": {"timetable": timetable, "assets": condition_to_json(condition)}}
        case OnBoth(_, condition):
            return {"both": {"timetable": timetable, "assets": condition_to_json(condition)}}


def condition_in_json(value: Any) -> Condition | None:
    """Return the expression of a stored schedule without loading its timetable, which may be third-party code.

    Raises:
        DagError: `schedule_to_json` did not write this value.
    """
    match value:
        case None | {"timetable": _}:
            return None
        case (
            {"either": {"assets": assets}}
            | {"both": {"assets": assets}}
            | {"partitioned": {"assets": assets}}
        ):
            return condition_from_json(assets)
    return condition_from_json(value)


def schedule_from_json(value: Any) -> Schedule | None:
    """Return the stored schedule. The schedule's assets have only a name and a URI.

    Unknown keys, which a later release wrote, are ignored.

    Raises:
        DagError: `schedule_to_json` did not write this value.
        PluginError: The schedule's timetable is not installed here, or cannot be loaded.
    """
    return None if value is None else schedule_from_text(json.dumps(value))


def schedule_from_text(text: str | None) -> Schedule | None:
    """Return the stored schedule from its JSON text. Raises the errors of `schedule_from_json`.

    The result is cached, because a scheduler reads the same schedules again and again.
    """
    return None if text is None else _read(text)


_FORMS: Final = frozenset({"timetable", "either", "both", "partitioned"})
"""Each of these keys tells the kind of a stored schedule. A schedule without any of them is an asset expression."""


# The scheduler reads the schedules of all DAGs in turn. A cache with fewer entries than DAGs would never hit.
@lru_cache(maxsize=16_384)
def _read(text: str) -> Schedule | None:
    value = json.loads(text)
    if isinstance(value, dict) and len(_FORMS & value.keys()) > 1:
        raise DagError(f"not a schedule: {value!r}")
    match value:
        case None:
            return None
        case {"timetable": timetable}:
            return OnTime(_timetable(timetable))
        case {"either": {"timetable": timetable, "assets": assets}}:
            return OnEither(_timetable(timetable), condition_from_json(assets))
        case {"both": {"timetable": timetable, "assets": assets}}:
            return OnBoth(_timetable(timetable), condition_from_json(assets))
        case {
            "partitioned": {
                "assets": assets,
                "default_mapper": dict(default),
                "mappers": dict(mappers),
            }
        }:
            return OnPartitions(condition_from_json(assets), default, mappers)
    return OnAssets(condition_from_json(value))


def _timetable(value: Any) -> Timetable:
    from triggerer.domain.timetables import timetable_from_json

    return timetable_from_json(value)
