"""Schedules of DAGs, and their stored form."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import AssetAll, AssetAny, Condition
from triggerer.domain.schedules import (
    OnAssets,
    OnBoth,
    OnEither,
    OnPartitions,
    OnTime,
    Schedule,
    condition_in_json,
    condition_of,
    schedule_from_json,
    schedule_of,
    schedule_to_json,
    timetable_in,
)
from triggerer.domain.timetables import (
    AssetAndTimeSchedule,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    OnceTimetable,
    Timetable,
)
from triggerer.errors import DagError, PluginError

A, B = Asset("x-test://a", name="a"), Asset("x-test://b", name="b")

TIMETABLES = st.sampled_from(
    [
        CronTriggerTimetable("0 6 * * *", timezone="Europe/Berlin"),
        DeltaDataIntervalTimetable(timedelta(hours=3)),
        OnceTimetable(),
    ]
)
CONDITIONS = st.sampled_from([A, AssetAlias("c"), AssetAll(A, B), AssetAny(A, AssetAll(B))])
SCHEDULES = st.one_of(
    st.builds(OnAssets, CONDITIONS),
    st.builds(OnTime, TIMETABLES),
    st.builds(OnEither, TIMETABLES, CONDITIONS),
    st.builds(OnBoth, TIMETABLES, CONDITIONS),
    st.builds(
        OnPartitions, CONDITIONS, st.just({"type": "Identity"}), st.just({"a": {"type": "Day"}})
    ),
)


@given(SCHEDULES)
def test_a_schedule_is_read_as_it_was_written(schedule: Schedule) -> None:
    stored = json.loads(json.dumps(schedule_to_json(schedule)))
    assert schedule_from_json(stored) == schedule
    assert condition_in_json(stored) == condition_of(schedule)


@given(TIMETABLES, CONDITIONS)
def test_its_parts_are_found_again(timetable: Timetable, condition: Condition) -> None:
    either = schedule_of(AssetOrTimeSchedule(timetable=timetable, assets=condition))
    both = schedule_of(AssetAndTimeSchedule(timetable=timetable, assets=condition))
    assert (type(either), type(both)) == (OnEither, OnBoth)
    for schedule in (either, both):
        assert (timetable_in(schedule), condition_of(schedule)) == (timetable, condition)
    assert schedule_of(either) is either
    assert timetable_in(None) is condition_of(None) is schedule_from_json(None) is None
    assert condition_in_json(None) is None


@pytest.mark.parametrize(
    "stored",
    [
        {"timetable": {"type": "OnceTimetable", "arguments": {}}, "either": {}},
        {"either": {"timetable": {"type": "OnceTimetable", "arguments": {}}}},
        {"both": {"assets": {"alias": "c"}}},
        {"partitioned": {"assets": {"alias": "c"}, "default_mapper": {}}},
        {"timetable": 3},
        "x",
        {},
    ],
)
def test_json_of_another_origin_is_refused(stored: object) -> None:
    with pytest.raises(DagError):
        schedule_from_json(stored)


def test_the_assets_of_a_timetable_that_is_not_installed_can_be_read_all_the_same() -> None:
    timetable = {"type": "theirs", "arguments": {}}
    stored = {"either": {"timetable": timetable, "assets": {"alias": "c"}}}
    assert condition_in_json(stored) == AssetAlias("c")
    with pytest.raises(PluginError, match="theirs"):
        schedule_from_json(stored)
