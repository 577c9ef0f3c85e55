"""Which runs a DAG would have had, by the decider itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.schedules import schedule_of
from triggerer.domain.timetables import (
    AssetAndTimeSchedule,
    AssetOrTimeSchedule,
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
)
from triggerer.partitions import FixedKeyMapper, RollupMapper, SegmentWindow, WaitUntil
from triggerer.scheduler import replay as module
from triggerer.scheduler.replay import Definition, RecordedEvent, Replayed, replay
from triggerer.timetables import PartitionedAssetTimetable

A, B, C = Asset("x-a"), Asset("x-b"), Asset("x-c")
ALIAS = AssetAlias("alias")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(hours: float) -> datetime:
    return BEGIN + timedelta(hours=hours)


def events(*given: tuple[Asset, float]) -> list[RecordedEvent]:
    return [RecordedEvent(n, asset, at(hours)) for n, (asset, hours) in enumerate(given, 1)]


def replayed(
    schedule: Any, *given: tuple[Asset, float], until: float = 100.0, **options: Any
) -> Replayed:
    definition = Definition("d", schedule_of(schedule), **options)
    members = {"alias": frozenset({B})}
    return replay(definition, events(*given), members=members, since=BEGIN, until=at(until))


def taken(found: Replayed) -> list[tuple[int, ...]]:
    return [run.asset_event_ids for run in found.runs]


def test_each_event_starts_a_run_of_a_dag_that_waits_for_one_asset() -> None:
    found = replayed(A, (A, 1), (B, 2), (A, 3))
    assert taken(found) == [(1,), (3,)]
    assert [run.at for run in found.runs] == [at(1), at(3)]
    assert {run.run_type for run in found.runs} == {"asset_triggered"}


def test_both_assets_are_waited_for_and_all_that_has_queued_is_taken() -> None:
    found = replayed(A & B, (A, 1), (A, 2), (B, 3), (C, 4), (B, 5))
    assert taken(found) == [(1, 2, 3)]
    assert found.waiting == (5,)


def test_events_per_run_takes_one_of_each() -> None:
    found = replayed(A & B, (A, 1), (A, 2), (B, 3), (B, 4), (B, 5), events_per_run=1)
    assert taken(found) == [(1, 3), (2, 4)]
    assert found.waiting == (5,)


def test_an_alias_stands_for_the_assets_that_it_was_resolved_to() -> None:
    assert taken(replayed(ALIAS, (A, 1), (B, 2))) == [(2,)]


def test_a_gap_and_a_quiet_period_gather_events_without_any_further_event() -> None:
    gap = replayed(A, (A, 0), (A, 1), (A, 2), (A, 11), min_run_gap=timedelta(hours=10))
    assert taken(gap) == [(1,), (2, 3), (4,)]
    assert [run.at for run in gap.runs] == [at(0), at(10), at(20)]
    quiet = replayed(A, (A, 0), (A, 1), (A, 5), quiet_period=timedelta(hours=2))
    assert taken(quiet) == [(1, 2), (3,)]
    assert [run.at for run in quiet.runs] == [at(3), at(7)]


def test_a_timetable_has_its_runs_each_when_it_is_due() -> None:
    found = replayed(CronDataIntervalTimetable("0 */6 * * *", timezone="UTC"), until=20)
    assert [run.at for run in found.runs] == [at(6), at(12), at(18)]
    assert [run.logical_date for run in found.runs] == [at(0), at(6), at(12)]
    assert {run.run_type for run in found.runs} == {"scheduled"}


def test_assets_or_time_has_runs_of_both_kinds_and_time_takes_no_events() -> None:
    daily = CronTriggerTimetable("0 12 * * *", timezone="UTC")
    found = replayed(AssetOrTimeSchedule(timetable=daily, assets=A), (A, 1), (A, 20), until=30)
    assert [(run.run_type, run.asset_event_ids) for run in found.runs] == [
        ("asset_triggered", (1,)),
        ("scheduled", ()),
        ("asset_triggered", (2,)),
    ]


def test_assets_and_time_wait_for_one_another_and_missed_times_are_one_run() -> None:
    daily = CronTriggerTimetable("0 6 * * *", timezone="UTC")
    both = AssetAndTimeSchedule(timetable=daily, assets=A)
    found = replayed(both, (A, 1), (A, 80), until=100)
    # Early data waits for six; late data starts one run for the days that had none.
    assert [(run.at, run.asset_event_ids) for run in found.runs] == [(at(6), (1,)), (at(80), (2,))]


def test_an_event_that_was_dated_back_does_not_turn_the_clock_back() -> None:
    assert [run.at for run in replayed(A, (A, 5), (A, 1)).runs] == [at(5), at(5)]


def test_the_season_of_a_dag_counts() -> None:
    found = replayed(A, (A, 1), (A, 5), (A, 9), start_date=at(4), end_date=at(6))
    assert [(run.at, run.asset_event_ids) for run in found.runs] == [(at(4), (1,)), (at(5), (2,))]
    assert found.waiting == (3,)


def test_by_hand_only_has_no_runs() -> None:
    assert replayed(None, (A, 1)) == Replayed((), ())


def _keyed(schedule: PartitionedAssetTimetable, *events: tuple[Asset, int, str | None]) -> Replayed:
    recorded = [
        RecordedEvent(number, asset, at(hours), key)
        for number, (asset, hours, key) in enumerate(events, 1)
    ]
    definition = Definition("d", schedule_of(schedule))
    return replay(definition, recorded, members={}, since=BEGIN, until=at(100))


def test_each_partition_key_has_its_runs() -> None:
    both = PartitionedAssetTimetable(assets=[A, B])
    found = _keyed(both, (A, 1, "x"), (A, 1, None), (B, 2, "y"), (B, 3, "x"), (A, 4, "x"))
    assert [(run.partition_key, run.at, run.asset_event_ids) for run in found.runs] == [
        ("x", at(3), (1, 4)),
        ("x", at(4), (5,)),
    ]
    assert found.waiting == (3,)


def test_a_deadline_of_a_key_passes_in_time() -> None:
    regions = RollupMapper(
        upstream_mapper=FixedKeyMapper("all"),
        window=SegmentWindow(["eu", "us"]),
        wait_policy=WaitUntil(timedelta(hours=5)),
    )
    timetable = PartitionedAssetTimetable(assets=A, default_partition_mapper=regions)
    found = _keyed(timetable, (A, 1, "eu"), (A, 20, "us"), (A, 20, "us"))
    assert [(run.at, run.asset_event_ids) for run in found.runs] == [
        (at(6), (1,)),
        (at(20), (2, 3)),
    ]


def test_a_replay_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RUNS", 3)
    found = replayed(A, *((A, n) for n in range(5)))
    assert (len(found.runs), found.is_cut_short) == (3, True)


def test_a_timetable_that_is_always_due_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RUNS", 50)
    assert len(replayed(ContinuousTimetable(), until=1).runs) <= 50


def test_runs_of_a_timetable_with_partition_keys_have_them() -> None:
    hourly = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1, key_format="%H")
    found = replayed(hourly, until=2.5, start_date=at(1))
    assert [run.partition_key for run in found.runs] == ["00", "01"]
    either = replayed(AssetOrTimeSchedule(timetable=hourly, assets=A), (A, 1.5), until=2.5)
    assert [run.partition_key for run in either.runs] == ["23", "00", None, "01"]


@pytest.mark.parametrize(
    "timetable",
    [
        CronTriggerTimetable("*/7 * * * *", timezone="UTC"),
        CronTriggerTimetable("30 2 * * *", timezone="Europe/Paris"),
        CronDataIntervalTimetable("0 */5 * * *", timezone="UTC"),
        CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1, key_format="%H"),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "season",
    [
        {},
        {"start_date": at(3.3)},
        {"end_date": at(12.5)},
        {"start_date": at(-50), "end_date": at(-1)},
    ],
    ids=["always", "later", "over", "before"],
)
def test_one_look_finds_the_runs_that_looks_at_each_instant_find(
    timetable: Any, season: dict[str, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = replayed(timetable, until=30, **season)
    monkeypatch.setattr(module, "_is_due_by_instants_alone", lambda _: False)
    assert replayed(timetable, until=30, **season) == at_once
    assert at_once.runs or season.get("end_date") == at(-1)


def test_a_timetable_is_asked_for_each_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[datetime] = []
    after = CronTriggerTimetable.after

    def counting(self: CronTriggerTimetable, moment: datetime) -> datetime | None:
        asked.append(moment)
        return after(self, moment)

    monkeypatch.setattr(CronTriggerTimetable, "after", counting)
    hourly = CronTriggerTimetable("0 * * * *", timezone="UTC")
    given = [(A, hours + 0.5) for hours in range(40)]
    for schedule in (
        hourly,
        AssetOrTimeSchedule(timetable=hourly, assets=A),
        AssetAndTimeSchedule(timetable=hourly, assets=A),
    ):
        asked.clear()
        found = replayed(schedule, *given, until=40)
        assert len(found.runs) >= 40
        # The first run is asked for twice, to learn when it is due.
        assert len(asked) < 50
