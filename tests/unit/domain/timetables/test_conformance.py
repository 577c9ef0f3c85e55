"""Our timetables and the examples of docs/ pass the conformance suite for timetables, and the suite finds faults."""

import importlib.util
import sys
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import SkipTest

import pytest

from triggerer.domain.timetables import DagRunInfo, serialization
from triggerer.testing import TimetableConformance
from triggerer.timetables import (
    AfterWorkdayTimetable,
    AllOf,
    AnyOf,
    Consecutive,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
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
    RollingWindow,
    RollUp,
    TickTimetable,
    Timetable,
    WorkdaysOfMonthTimetable,
)

EXAMPLES = Path(__file__).resolve().parents[4] / "docs" / "examples"
HOUR = timedelta(hours=1)
DAILY = CronTriggerTimetable("30 2 * * *", timezone="Europe/Paris")
OURS: list[Timetable] = [
    DAILY,
    CronTriggerTimetable("0 * * * *", timezone="Australia/Lord_Howe", interval=HOUR),
    CronDataIntervalTimetable("30 2 * * *", timezone="Europe/Paris"),
    MultipleCronTriggerTimetable("0 6 * * *", "0 18 * * mon", timezone="America/Santiago"),
    DeltaTriggerTimetable(7 * HOUR),
    DeltaDataIntervalTimetable(7 * HOUR),
    AfterWorkdayTimetable(timezone="Europe/Paris", holidays=[date(2026, 12, 25)]),
    WorkdaysOfMonthTimetable(15, -1, timezone="Europe/Paris"),
    Consecutive(WorkdaysOfMonthTimetable(15, -1, timezone="Europe/Paris")),
    AnyOf(DAILY, CronTriggerTimetable("0 */6 * * *", timezone="UTC")),
    AllOf(CronTriggerTimetable("* 2 * * *", timezone="UTC"),
          CronTriggerTimetable("*/30 * * * mon-fri", timezone="UTC")),
    Except(DAILY, CronTriggerTimetable("* * * * sun", timezone="Europe/Paris")),
    ExceptDays(DAILY, [date(2026, 3, 29)], timezone="Europe/Paris"),
    Delayed(CronDataIntervalTimetable("@daily", timezone="UTC"), HOUR),
    RollingWindow(DAILY, 30 * 24 * HOUR),
    CronPartitionTimetable("30 2 * * *", timezone="Europe/Paris"),
    CronPartitionTimetable("0 * * * *", timezone="Australia/Lord_Howe", run_offset=-1),
    CronPartitionTimetable("0 6 * * mon", timezone="America/Santiago", run_offset=2),
    Keyed(CronDataIntervalTimetable("30 2 * * *", timezone="Europe/Paris"), timezone="UTC"),
]  # fmt: skip
CASES = [name for name in dir(TimetableConformance) if name.startswith("test_")]


def suite(timetable: Timetable, **settings: object) -> TimetableConformance:
    kind = type(
        "Suite", (TimetableConformance,), {"new_timetable": lambda self: timetable, **settings}
    )
    return kind()


def run(one: TimetableConformance, case: str) -> None:
    try:
        getattr(one, case)()
    except SkipTest as skipped:
        pytest.skip(str(skipped))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("timetable", OURS, ids=lambda one: f"{type(one).__name__} {one.summary}")
def test_our_timetables_hold_what_every_timetable_must(timetable: Timetable, case: str) -> None:
    run(suite(timetable, steps=12), case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "timetable",
    [
        OnceTimetable(),
        NullTimetable(),
        EventsTimetable([datetime(2026, 3, 1, tzinfo=UTC)]),
        RollUp(DAILY),
    ],
    ids=lambda one: type(one).__name__,
)
def test_those_that_end_or_make_nothing_up_do_too(timetable: Timetable, case: str) -> None:
    run(suite(timetable, steps=12, is_endless=False, catches_up=False), case)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def examples() -> dict[str, Timetable]:
    return {
        "trading-days": example("trading_days").TradingDaysTimetable("XNYS", HOUR),
        "sunset": example("sunset").SunsetTimetable(59.91, 10.75),
    }


@pytest.fixture
def installed(examples: dict[str, Timetable], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both examples known as entry points of packages would."""
    points = {
        name: EntryPoint(name, f"{type(one).__module__}:{type(one).__name__}", serialization.GROUP)
        for name, one in examples.items()
    }
    monkeypatch.setattr(serialization, "_points", lambda: points)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["trading-days", "sunset"])
def test_the_examples_of_the_documentation_hold_it(
    name: str, case: str, examples: dict[str, Timetable]
) -> None:
    years = TimetableConformance.moments[:3]
    # Exchanges publish their days a year or two ahead.
    run(suite(examples[name], steps=8, moments=years, catches_up=name == "sunset"), case)


def test_trading_days_know_holidays_and_early_closes(examples: dict[str, Timetable]) -> None:
    trading: Any = examples["trading-days"]
    moment, closes = datetime(2024, 11, 27, tzinfo=UTC), []
    for _ in range(3):
        moment = trading.after(moment)
        closes.append(f"{moment:%d. %H:%M}")
    # Each tick is an hour after the exchange closes. On Thanksgiving (28 November) the exchange does not open, and on
    # the day after it closes early.
    assert closes == ["27. 22:00", "29. 19:00", "02. 22:00"]
    assert trading.after(datetime(2027, 12, 31, 23, tzinfo=UTC)) is None
    assert trading.before(datetime(2006, 1, 2, tzinfo=UTC)) is None


def test_the_sun_does_not_set_beyond_the_polar_circle_in_summer() -> None:
    svalbard = example("sunset").SunsetTimetable(78.22, 15.65)
    found = svalbard.after(datetime(2026, 5, 1, tzinfo=UTC))
    assert found is not None
    assert found.month == 8


class Broken(TickTimetable):
    """A correct timetable. Each subclass breaks one method."""

    description = "broken"

    def after(self, moment: datetime) -> datetime | None:
        return DAILY.after(moment)

    def before(self, moment: datetime) -> datetime | None:
        return DAILY.before(moment)


class Backwards(Broken):
    def before(self, moment: datetime) -> datetime | None:
        earlier = DAILY.before(moment)
        return earlier and DAILY.before(earlier)


class Naive(Broken):
    def next_dagrun_info(self, **arguments: Any) -> DagRunInfo | None:
        info = super().next_dagrun_info(**arguments)
        return info and DagRunInfo(info.run_after.replace(tzinfo=None), info.data_interval)


class Stuck(Broken):
    def next_dagrun_info(self, **arguments: Any) -> DagRunInfo | None:
        arguments["last_automated_data_interval"] = None
        return super().next_dagrun_info(**arguments)


class OwnClock(Broken):
    def next_dagrun_info(self, **arguments: Any) -> DagRunInfo | None:
        moment = datetime.now(UTC)
        return DagRunInfo.exact(moment)


class Unbounded(Broken):
    def next_dagrun_info(self, **arguments: Any) -> DagRunInfo | None:
        arguments["restriction"] = arguments["restriction"]._replace(earliest=None, latest=None)
        return super().next_dagrun_info(**arguments)


class OneByOne(Broken):
    def next_dagrun_info(self, **arguments: Any) -> DagRunInfo | None:
        arguments["restriction"] = arguments["restriction"]._replace(catchup=True)
        return super().next_dagrun_info(**arguments)


class Forgetful(Broken):
    def __init__(self, description: str = "fresh") -> None:
        self.description = description


class Silent(Broken):
    description = ""


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (Backwards(), "test_its_instants_are_the_same_in_both_directions"),
        (
            Naive(),
            "test_its_instants_are_aware_and_in_utc_and_intervals_do_not_end_before_they_start",
        ),
        (Stuck(), "test_each_run_is_later_than_the_one_before_and_has_a_date_of_its_own"),
        (OwnClock(), "test_the_same_question_has_the_same_answer"),
        (Unbounded(), "test_no_run_is_before_the_start_or_for_a_time_after_the_end"),
        (OneByOne(), "test_after_years_without_catch_up_few_runs_lie_in_the_past"),
        (Forgetful("old"), "test_it_comes_back_from_json_and_answers_as_before"),
        (Broken(), "test_it_is_found_by_its_entry_point"),
        (Silent(), "test_it_says_what_it_is"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Timetable) else "",
)
def test_the_suite_finds_the_fault(broken: Timetable, case: str) -> None:
    with pytest.raises((AssertionError, serialization.DagError, TypeError)):
        getattr(suite(broken, steps=5), case)()
    for other in CASES:
        sound = suite(DAILY, steps=5)
        getattr(sound, other)()
