"""Timetables to JSON and back, and what a schedule means."""

import json
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from triggerer import Asset
from triggerer.domain.timetables import (
    serialization,
    timetable_from_json,
    timetable_of,
    timetable_to_json,
)
from triggerer.errors import DagError, PluginError
from triggerer.partitions import StartOfDayMapper
from triggerer.timetables import (
    AfterWorkdayTimetable,
    AllOf,
    AnyOf,
    AssetAndTimeSchedule,
    AssetOrTimeSchedule,
    Consecutive,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DataInterval,
    Delayed,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    Except,
    ExceptDays,
    Keyed,
    MultipleCronTriggerTimetable,
    NullTimetable,
    OnceTimetable,
    PartitionedAssetTimetable,
    RollingWindow,
    RollUp,
    Timetable,
    WorkdaysOfMonthTimetable,
)

PARIS = ZoneInfo("Europe/Paris")
ALL = [
    NullTimetable(),
    OnceTimetable(),
    ContinuousTimetable(),
    CronDataIntervalTimetable("@daily", timezone="Europe/Paris"),
    CronPartitionTimetable("@daily", timezone=PARIS),
    CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1, run_immediately=timedelta(minutes=2),
                           key_format="%Y-%m-%dT%H%z"),
    Keyed(CronDataIntervalTimetable("@daily", timezone=PARIS), timezone=PARIS, key_format="%Y-%m-%d"),
    CronTriggerTimetable("0 6 * * 1", timezone=PARIS),
    CronTriggerTimetable("0 6 * * 1", timezone=timezone(timedelta(hours=5, minutes=45)),
                         interval=timedelta(days=7), run_immediately=timedelta(minutes=2)),
    CronTriggerTimetable("0 6 * * 1", timezone="UTC", run_immediately=True),
    MultipleCronTriggerTimetable("0 6 * * 1", "@hourly", timezone="UTC", interval=timedelta(1)),
    DeltaDataIntervalTimetable(timedelta(days=1, microseconds=7)),
    DeltaTriggerTimetable(timedelta(minutes=90), interval=timedelta(minutes=30)),
    EventsTimetable([datetime(2026, 1, 2, tzinfo=PARIS)], True, description="a party"),
    AnyOf(CronTriggerTimetable("@daily", timezone=PARIS), CronTriggerTimetable("@hourly", timezone="UTC")),
    AllOf(CronTriggerTimetable("@daily", timezone=PARIS), interval=timedelta(hours=3)),
    Except(CronTriggerTimetable("@daily", timezone=PARIS), EventsTimetable([])),
    ExceptDays(CronTriggerTimetable("@daily", timezone=PARIS), [date(2026, 12, 25)], timezone=PARIS),
    Consecutive(CronTriggerTimetable("@daily", timezone=PARIS)),
    RollUp(CronDataIntervalTimetable("@daily", timezone=PARIS)),
    Delayed(CronDataIntervalTimetable("@daily", timezone=PARIS), timedelta(hours=3)),
    RollingWindow(CronDataIntervalTimetable("@daily", timezone=PARIS), timedelta(days=30)),
    AfterWorkdayTimetable(timezone=PARIS, workdays=[6, 0], holidays=[date(2026, 12, 25)]),
    WorkdaysOfMonthTimetable(15, -1, timezone=PARIS, at=time(6, 30), roll="after", holidays=[date(2026, 12, 25)]),
    AssetOrTimeSchedule(timetable=OnceTimetable(), assets=[Asset("s3://b/a"), Asset("s3://b/b")]),
    PartitionedAssetTimetable(assets=Asset("s3://b/a"),
                              partition_mapper_config={Asset("s3://b/a"): StartOfDayMapper()}),
    AssetAndTimeSchedule(timetable=DeltaTriggerTimetable(timedelta(1)),
                         assets=Asset("s3://b/a") | Asset("s3://b/b")),
]  # fmt: skip


@pytest.mark.parametrize("timetable", ALL, ids=lambda one: f"{type(one).__name__} {one.summary}")
def test_a_timetable_comes_back_from_json_as_it_was(timetable: Timetable) -> None:
    back = timetable_from_json(json.loads(json.dumps(timetable_to_json(timetable))))
    assert back == timetable
    assert hash(back) == hash(timetable)
    assert back.summary == timetable.summary
    assert back.description == timetable.description != ""


def test_every_timetable_of_ours_is_among_them() -> None:
    assert {type(one).__name__ for one in ALL} == set(serialization.BUILT_IN)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"type": "OnceTimetable"},
        {"type": "OnceTimetable", "arguments": {"no": 1}},
        {"type": "CronTriggerTimetable", "arguments": {"cron": "nonsense", "timezone": "UTC"}},
        {"type": "EventsTimetable", "arguments": {"event_dates": ["tomorrow"]}},
    ],
)
def test_json_of_another_origin_is_refused(value: Any) -> None:
    with pytest.raises(DagError):
        timetable_from_json(value)


class EveryDecade(OnceTimetable):
    """Stands for a timetable from another package."""


def install(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    group = serialization.GROUP
    installed = [EntryPoint(name, value, group) for name, value in points.items()]
    monkeypatch.setattr(serialization, "entry_points", lambda group: installed)
    serialization._points.cache_clear()
    monkeypatch.setattr(serialization, "_points", serialization._points.__wrapped__)


def test_a_timetable_of_another_package_is_found_by_its_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DagError, match="entry point"):
        timetable_to_json(EveryDecade())
    install(monkeypatch, broken="no.such.module:X", decade=f"{__name__}:EveryDecade")
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(EveryDecade=EveryDecade))
    stored = timetable_to_json(EveryDecade())
    assert stored == {"type": "decade", "arguments": {}}
    assert type(timetable_from_json(stored)) is EveryDecade


@pytest.mark.parametrize(
    "name", ["os.system", "tests.unit.domain.EveryDecade", "builtins:eval", "gone"]
)
def test_a_name_out_of_the_database_is_never_imported_as_a_path(name: str) -> None:
    with pytest.raises(PluginError, match="there is no timetable"):
        timetable_from_json({"type": name, "arguments": {}})


def test_a_broken_or_foreign_entry_point_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(
        monkeypatch,
        broken="no.such.module:X",
        foreign="json:JSONDecoder",
        OnceTimetable="json:JSONDecoder",
    )
    for name in ("broken", "foreign"):
        with pytest.raises(PluginError, match=name):
            timetable_from_json({"type": name, "arguments": {}})
    # Our own names cannot be taken.
    assert timetable_from_json({"type": "OnceTimetable", "arguments": {}}) == OnceTimetable()


@pytest.mark.parametrize(
    ("schedule", "timetable"),
    [
        (None, NullTimetable()),
        ("@once", OnceTimetable()),
        ("@continuous", ContinuousTimetable()),
        ("@daily", CronTriggerTimetable("0 0 * * *", timezone="Europe/Paris")),
        ("@quarterly", CronTriggerTimetable("0 0 1 */3 *", timezone="Europe/Paris")),
        ("5 4 * * *", CronTriggerTimetable("5 4 * * *", timezone="Europe/Paris")),
        (timedelta(hours=2), DeltaTriggerTimetable(timedelta(hours=2))),
        (OnceTimetable(), OnceTimetable()),
    ],
)
def test_a_schedule_means_what_airflows_default_configuration_makes_of_it(
    schedule: object, timetable: Timetable
) -> None:
    assert timetable_of(schedule, timezone="Europe/Paris") == timetable


@pytest.mark.parametrize("schedule", ["every day", 5, timedelta(0), object()])
def test_a_value_that_is_no_schedule_in_time_is_refused(schedule: object) -> None:
    with pytest.raises(DagError):
        timetable_of(schedule)


def test_a_timetable_with_assets_answers_what_its_timetable_answers() -> None:
    events = EventsTimetable([datetime(2026, 1, 2, tzinfo=UTC)], restrict_to_events=True)
    both = AssetAndTimeSchedule(timetable=events, assets=Asset("s3://b/a"))
    assert both.assets == Asset("s3://b/a")
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    assert both.infer_manual_data_interval(run_after=moment) == DataInterval.exact(
        datetime(2026, 1, 2, tzinfo=UTC)
    )
    assert AssetOrTimeSchedule(timetable=events, assets=Asset("s3://b/a")) != both
    with pytest.raises(DagError):
        AssetOrTimeSchedule(timetable=both, assets=Asset("s3://b/a"))
    for nothing in ([], None, "s3://b/a"):
        with pytest.raises(DagError):
            AssetOrTimeSchedule(timetable=events, assets=nothing)
