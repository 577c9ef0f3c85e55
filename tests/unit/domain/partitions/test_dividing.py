"""For which runs events are, and when the run of a key may start."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from triggerer import Asset, AssetAlias
from triggerer.domain.conditions import AssetAll, AssetAny, Condition
from triggerer.domain.partitions.dividing import (
    Division,
    KeyedEvent,
    Lack,
    Part,
    Partitioner,
    Share,
)
from triggerer.partitions import (
    AllowedKeyMapper,
    DayWindow,
    FanOutMapper,
    HourWindow,
    IdentityMapper,
    MinimumCount,
    MonthWindow,
    PartitionMapper,
    RollupMapper,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    WaitForAll,
    WaitPolicy,
    WaitUntil,
)

A, B = Asset("x-test://a", name="a"), Asset("x-test://b", name="b")
NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
DAY, END = "2026-03-10", datetime(2026, 3, 11, tzinfo=UTC)
HOURS = [f"{DAY}T{hour:02}" for hour in range(24)]


def of(
    condition: Condition, default: PartitionMapper | None = None, **mappers: PartitionMapper
) -> Partitioner:
    return Partitioner(condition, mappers, default or IdentityMapper())


def daily(policy: WaitPolicy) -> RollupMapper:
    hours = StartOfDayMapper(input_format="%Y-%m-%dT%H")
    return RollupMapper(upstream_mapper=hours, window=DayWindow(), wait_policy=policy)


def event(number: int, key: str | None, asset: Asset = A) -> KeyedEvent:
    return KeyedEvent(number, 1, asset.name, asset.uri, key, NOW)


def part(name: str, asset: Asset = A, *aliases: str) -> Part:
    return Part(1, asset.name, asset.uri, name, NOW, frozenset(aliases))


def shares(division: Division) -> list[tuple[str, int, str]]:
    return [(one.partition_key, one.event.id, one.part) for one in division.shares]


def test_an_event_is_for_the_keys_that_its_assets_mapper_says() -> None:
    days = FanOutMapper(
        upstream_mapper=StartOfMonthMapper(input_format="%Y-%m"), window=MonthWindow()
    )
    both = of(A & B, daily(WaitForAll()), b=days)
    found = both.divide([event(1, HOURS[3]), event(2, "2026-02", B)], most=100)
    assert shares(found)[0] == (DAY, 1, HOURS[3])
    assert shares(found)[1:] == [(f"2026-02-{day:02}", 2, "") for day in range(1, 29)]
    assert found.divided == (1, 2)


def test_a_refused_event_says_why_and_stops_no_other() -> None:
    found = of(A, AllowedKeyMapper(["eu"])).divide(
        [event(1, None), event(2, "mars"), event(3, "eu")], most=100
    )
    assert shares(found) == [("eu", 3, "")]
    assert found.refused[1] == "the event has no partition key"
    assert "'mars' is none of eu" in found.refused[2]


def test_no_more_is_divided_than_is_asked_for_but_one_event_always_is() -> None:
    days = FanOutMapper(
        upstream_mapper=StartOfMonthMapper(input_format="%Y-%m"), window=MonthWindow()
    )
    found = of(A, days).divide([event(1, "2026-01"), event(2, "2026-02")], most=5)
    assert found.divided == (1,)
    assert len(found.shares) == 31


def test_a_key_is_due_at_once_when_all_parts_are_there() -> None:
    keys = of(A, daily(WaitForAll()))
    parts = [part(hour) for hour in HOURS]
    assert keys.due_at(DAY, parts, has_run=False, now=NOW) == NOW
    assert keys.due_at(DAY, parts[1:], has_run=False, now=NOW) is None
    assert keys.lacks(DAY, parts[1:], now=NOW) == (Lack("a", (HOURS[0],)),)


def test_a_key_with_a_deadline_is_due_then_if_enough_is_there() -> None:
    keys = of(A, daily(WaitUntil(timedelta(hours=2), minimum=2)))
    parts = [part(hour) for hour in HOURS]
    deadline = END + timedelta(hours=2)
    assert keys.due_at(DAY, parts[:2], has_run=False, now=NOW) == deadline
    assert keys.due_at(DAY, parts[:1], has_run=False, now=NOW) is None
    assert keys.due_at(DAY, parts[:2], has_run=False, now=deadline) == deadline


def test_the_expression_decides_which_of_two_deadlines_counts() -> None:
    early, late = daily(WaitUntil(timedelta(hours=1))), daily(WaitUntil(timedelta(hours=5)))
    parts = [part(HOURS[0]), part(HOURS[0], B)]
    for condition, hours in ((AssetAll(A, B), 5), (AssetAny(A, B), 1)):
        keys = of(condition, a=early, b=late)
        due = keys.due_at(DAY, parts, has_run=False, now=NOW)
        assert due == END + timedelta(hours=hours)


def test_an_event_for_a_key_that_has_run_waits_for_nothing_else() -> None:
    keys = of(AssetAll(A, B), daily(WaitForAll()))
    assert keys.due_at(DAY, [part(HOURS[0])], has_run=True, now=NOW) == NOW
    stranger = part(HOURS[0], Asset("x-test://c", name="c"))
    assert keys.due_at(DAY, [stranger], has_run=True, now=NOW) is None


def test_an_alias_is_there_with_any_of_its_assets() -> None:
    keys = of(AssetAll(A, AssetAlias("both")))
    assert keys.due_at("k", [part("")], has_run=False, now=NOW) is None
    assert keys.lacks("k", [part("")], now=NOW) == (Lack("both"),)
    assert keys.due_at("k", [part(""), part("", B, "both")], has_run=False, now=NOW) == NOW


def test_a_day_on_which_clocks_are_set_is_due_with_the_hours_that_it_has() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    mapper = RollupMapper(
        upstream_mapper=StartOfDayMapper(timezone="Europe/Berlin", input_format="%Y-%m-%dT%H%z"),
        window=DayWindow(),
    )
    keys = of(A, mapper)
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25), ("2026-03-10", 24)):
        midnight = datetime.fromisoformat(day).replace(tzinfo=berlin).astimezone(UTC)
        instants = [midnight + timedelta(hours=hour) for hour in range(hours)]
        written = [instant.strftime("%Y-%m-%dT%H%z") for instant in instants]
        division = keys.divide([event(n, key) for n, key in enumerate(written)], most=100)
        parts = [part(share.part) for share in division.shares]
        assert {share.partition_key for share in division.shares} == {day}
        assert keys.due_at(day, parts, has_run=False, now=NOW) == NOW
        assert keys.due_at(day, parts[1:], has_run=False, now=NOW) is None


def test_a_key_that_another_assets_mapper_has_made_is_said_to_be_out_of_reach() -> None:
    keys = of(AssetAll(A, B), a=daily(WaitForAll()), b=IdentityMapper())
    (lack,) = keys.lacks("anything", [part("", B)], now=NOW)
    assert lack.unreachable is not None
    assert keys.due_at("anything", [part("", B)], has_run=False, now=NOW) is None


def test_a_roll_up_whose_window_does_not_fit_is_never_due_and_says_why() -> None:
    days = RollupMapper(upstream_mapper=StartOfDayMapper(), window=MonthWindow())
    keys = of(AssetAll(A, AssetAlias("both")), a=days)
    hour = "2026-03-10T05:00:00"
    (share,) = keys.divide([event(1, hour)], most=9).shares
    assert share == Share(DAY, event(1, hour), hour)
    reason = "a window of months or days counts from the first of a month, not 2026-03-10 00:00:00"
    a, both = Lack("a", unreachable=reason), Lack("both", unreachable=reason)
    for parts, lacks in (
        ([part(hour)], (a, Lack("both"))),
        ([part("", B, "both")], (a,)),
        ([part(hour, A, "both")], (a, both)),
    ):
        assert keys.due_at(DAY, parts, has_run=False, now=NOW) is None
        assert keys.lacks(DAY, parts, now=NOW) == lacks


def test_an_hour_that_the_clock_skips_is_never_due_and_says_why() -> None:
    minutes = RollupMapper(
        upstream_mapper=StartOfHourMapper(
            timezone="America/New_York", input_format="%Y-%m-%dT%H:%M"
        ),
        window=HourWindow(),
    )
    hour, minute = "2024-03-10T02", "2024-03-10T02:15"
    keys = of(AssetAll(A, B), a=minutes, b=IdentityMapper())
    (share,) = keys.divide([event(1, minute)], most=9).shares
    assert (share.partition_key, share.part) == (hour, minute)
    for parts in ([part("", B)], [part("", B), part(minute)]):
        assert keys.due_at(hour, parts, has_run=False, now=NOW) is None
        (lack,) = keys.lacks(hour, parts, now=NOW)
        assert lack.unreachable == "the period has no parts, because clocks skip it"


@given(st.sets(st.sampled_from(HOURS)), st.integers(1, 24))
def test_it_lacks_something_exactly_until_it_is_due(hours: set[str], count: int) -> None:
    keys = of(A, daily(MinimumCount(count)))
    parts = [part(hour) for hour in sorted(hours)]
    is_due = keys.due_at(DAY, parts, has_run=False, now=NOW) is not None
    assert is_due == (len(hours) >= count) == (keys.lacks(DAY, parts, now=NOW) == ())
