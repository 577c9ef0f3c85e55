"""The conformance suite for timetables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any, ClassVar
from unittest import SkipTest
from unittest.mock import patch

from triggerer.domain.timetables import (
    DagRunInfo,
    DataInterval,
    HasTicks,
    TimeRestriction,
    Timetable,
    clock,
    timetable_from_json,
    timetable_to_json,
)


@contextmanager
def frozen_clock(moment: datetime) -> Iterator[None]:
    """While the block lasts, `triggerer.timetables.now()` returns `moment`."""

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return moment.astimezone(tz)

    with patch.object(clock, "datetime", Frozen):
        yield


class TimetableConformance:
    """Tests a timetable: write `class TestMine(TimetableConformance)` in a test module, and implement `new_timetable`.

    Set `is_installed` to False if the timetable has no entry point, `is_endless` if its runs end, and `catches_up` if
    it cannot catch up.
    """

    moments: ClassVar[Sequence[datetime]] = (
        datetime(2024, 2, 28, 23, 59, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 12, 31, 12, tzinfo=UTC),
    )
    """The instants at which the cases call the timetable."""
    steps: ClassVar[int] = 30
    """The most runs in a row that a case computes."""
    is_endless: ClassVar[bool] = True
    """Whether there is always a next run."""
    catches_up: ClassVar[bool] = True
    """Whether the timetable can miss runs and catch up. False, for example, for `once`, which has a single run."""
    is_installed: ClassVar[bool] = True
    """Whether an entry point names the timetable in this environment."""

    def new_timetable(self) -> Timetable:
        """The timetable under test; an equal one in each call."""
        raise NotImplementedError

    # Cases

    def test_its_instants_are_aware_and_in_utc_and_intervals_do_not_end_before_they_start(
        self,
    ) -> None:
        for info in self._all_runs():
            for moment in (info.run_after, *info.data_interval):
                assert moment.utcoffset() == timedelta(0), f"{moment!r} is not in UTC"
            assert info.data_interval.start <= info.data_interval.end, info

    def test_each_run_is_later_than_the_one_before_and_has_a_date_of_its_own(self) -> None:
        for moment in self.moments:
            for catchup in (False, True):
                runs = self._runs(
                    moment, TimeRestriction(moment - timedelta(days=800), None, catchup)
                )
                self._check_there_are_some(runs)
                for before, after in pairwise(runs):
                    assert before.run_after < after.run_after, (before, after)
                    assert before.logical_date < after.logical_date, (before, after)

    def test_the_same_question_has_the_same_answer(self) -> None:
        """The next run depends only on the arguments and on `triggerer.timetables.now()`."""
        for moment in self.moments:
            for catchup in (False, True):
                restriction = TimeRestriction(moment - timedelta(days=800), None, catchup)
                first = self._runs(moment, restriction)
                assert self._runs(moment, restriction) == first

    def test_no_run_is_before_the_start_or_for_a_time_after_the_end(self) -> None:
        for moment in self.moments:
            for catchup in (False, True):
                start, end = moment - timedelta(days=500), moment + timedelta(days=500)
                for info in self._runs(moment, TimeRestriction(start, end, catchup)):
                    assert info.run_after >= start, info
                    assert info.data_interval.start <= end, info
                over = TimeRestriction(
                    moment - timedelta(days=900), end - timedelta(days=1350), catchup=False
                )
                first = self._ask(moment, None, over)
                assert first is None or first.data_interval.start <= end - timedelta(days=1350), (
                    first
                )

    def test_after_years_without_catch_up_few_runs_lie_in_the_past(self) -> None:
        """The timetable may first return up to two missed runs. The run after them must lie in the future."""
        self._needs(self.catches_up, "catches_up")
        for moment in self.moments:
            last = self._ask(moment, None, TimeRestriction(moment, None, catchup=True))
            if last is None:
                continue
            now, interval = moment + timedelta(days=20 * 365), last.data_interval
            for _ in range(3):
                info = self._ask(now, interval, TimeRestriction(None, None, catchup=False))
                if info is None or info.run_after > now:
                    break
                interval = info.data_interval
            else:
                raise AssertionError(f"the third run is still a missed run: {info}")

    def test_with_catch_up_missed_runs_come_one_by_one(self) -> None:
        self._needs(self.catches_up, "catches_up")
        for moment in self.moments:
            start = TimeRestriction(moment - timedelta(days=800), None, catchup=True)
            late = self._runs(moment, start)
            on_time = self._runs(moment - timedelta(days=800), start)
            assert late == on_time

    def test_a_run_by_hand_has_a_data_interval(self) -> None:
        for moment in self.moments:
            with frozen_clock(moment):
                interval = self.new_timetable().infer_manual_data_interval(run_after=moment)
            assert interval.start.utcoffset() == interval.end.utcoffset() == timedelta(0), interval
            assert interval.start <= interval.end, interval

    def test_it_comes_back_from_json_and_answers_as_before(self) -> None:
        timetable = self.new_timetable()
        data = json.loads(json.dumps(timetable.serialize()))
        self._check_same(type(timetable).deserialize(data))

    def test_it_is_found_by_its_entry_point(self) -> None:
        self._needs(self.is_installed, "is_installed")
        stored = json.loads(json.dumps(timetable_to_json(self.new_timetable())))
        self._check_same(timetable_from_json(stored))

    def test_it_says_what_it_is(self) -> None:
        timetable = self.new_timetable()
        for text in (timetable.summary, timetable.description):
            assert isinstance(text, str), text
            assert text.strip(), "summary and description must not be empty"

    def test_its_instants_are_the_same_in_both_directions(self) -> None:
        timetable = self.new_timetable()
        if not isinstance(timetable, HasTicks):
            raise SkipTest(f"{type(timetable).__name__} has no `after` and `before`")
        for moment in self.moments:
            found, at = [], moment
            for _ in range(self.steps):
                following = timetable.after(at)
                if following is None:
                    break
                assert following > at, (at, following)
                found.append(following)
                at = following
            for before, after in pairwise(found):
                assert timetable.before(after) == before, (before, after)
                assert timetable.before(after + timedelta(microseconds=1)) == after
                assert timetable.after(before - timedelta(microseconds=1)) == before

    # Calls of the timetable

    def _ask(
        self, now: datetime, last: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        with frozen_clock(now):
            return self.new_timetable().next_dagrun_info(
                last_automated_data_interval=last, restriction=restriction
            )

    def _runs(self, now: datetime, restriction: TimeRestriction) -> list[DagRunInfo]:
        """The first runs that a scheduler creates if it starts at `now` and waits until each run is due."""
        found: list[DagRunInfo] = []
        last: DataInterval | None = None
        for _ in range(self.steps):
            info = self._ask(now, last, restriction)
            if info is None:
                break
            found.append(info)
            last, now = info.data_interval, max(now, info.run_after)
        return found

    def _all_runs(self) -> Iterator[DagRunInfo]:
        for moment in self.moments:
            for catchup in (False, True):
                yield from self._runs(
                    moment, TimeRestriction(moment - timedelta(days=800), None, catchup)
                )
                yield from self._runs(moment, TimeRestriction(None, None, catchup))

    def _check_there_are_some(self, runs: list[DagRunInfo]) -> None:
        assert not self.is_endless or len(runs) == self.steps, f"only {len(runs)} runs"

    def _check_same(self, other: Timetable) -> None:
        mine = self.new_timetable()
        assert type(other) is type(mine)
        assert (other.summary, other.description) == (mine.summary, mine.description)
        for moment in self.moments:
            restriction = TimeRestriction(moment - timedelta(days=800), None, catchup=True)
            arguments: dict[str, Any] = {
                "last_automated_data_interval": None,
                "restriction": restriction,
            }
            with frozen_clock(moment):
                assert other.next_dagrun_info(**arguments) == mine.next_dagrun_info(**arguments)

    def _needs(self, has: bool, name: str) -> None:
        if not has:
            raise SkipTest(f"{type(self).__name__} says {name} = False")
