"""Compares our answers with Airflow's, step by step. Each step starts from the state that Airflow had."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import time_machine

from tests.airflow.timetable_cases import clock_changes
from triggerer.domain.timetables import timetable_from_json
from triggerer.domain.timetables.cron.expression import Cron
from triggerer.domain.timetables.zones import checked_zone
from triggerer.errors import DagError
from triggerer.timetables import DataInterval, TimeRestriction, Timetable

HERE = Path(__file__).parent
RECORDED = HERE / "timetable_answers.json"
DAY = timedelta(days=1)

Case = dict[str, Any]
Answers = list[Any]


def record(cases: list[Case], answers: list[Answers]) -> None:
    """Write the cases with Airflow's answers to `RECORDED`, one case in a line."""
    lines = (
        json.dumps([case, answer], separators=(",", ":")).replace("+00:00", "Z")
        for case, answer in zip(cases, answers, strict=True)
    )
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def recorded() -> tuple[list[Case], list[Answers]]:
    pairs = json.loads(RECORDED.read_text().replace('Z"', '+00:00"'))
    return [case for case, _ in pairs], [answer for _, answer in pairs]


class Comparison:
    """Counts equal answers, and different answers by reason. A difference without a known reason fails the test."""

    def __init__(self) -> None:
        self.equal = 0
        self.different: Counter[str] = Counter()

    @property
    def share(self) -> float:
        return self.different.total() / (self.equal + self.different.total())

    def add(self, case: Case, answers: Answers) -> None:
        timetable = _timetable(case)
        if timetable is None:
            # We refuse an expression that names no date. Airflow accepts it, but each of its answers is null or an
            # error.
            steps = [answer for _, answer in answers[:-1]]
            assert all(step is None or "error" in step for step in steps), (case, answers)
            self.different["an expression that names no date is refused"] += 1
            return
        for asked, theirs, ours in _steps(timetable, case, answers):
            if ours == theirs:
                self.equal += 1
                continue
            where = f"{case}\nasked {asked}\nAirflow {theirs}\nours    {ours}"
            assert "timezone" in case["arguments"], where
            assert _is_named(case, ours), where
            assert _is_where_clocks_change(case, asked, theirs, ours), where
            if isinstance(theirs, dict):
                self.different["Airflow raises where clocks change"] += 1
            else:
                self.different["where clocks change"] += 1


def _timetable(case: Case) -> Timetable | None:
    """Return our timetable of a case; None if we refuse it because its expression names no date."""
    arguments = case["arguments"]
    if case["type"] == "EventsTimetable":
        arguments = {"description": None, **arguments}
    try:
        return timetable_from_json({"type": case["type"], "arguments": arguments})
    except DagError as error:
        if "names no date" not in str(error):
            raise
        return None


def _steps(timetable: Timetable, case: Case, answers: Answers) -> Iterator[tuple[Any, Any, Any]]:
    earliest, latest = (_instant(case[name]) for name in ("earliest", "latest"))
    restriction = TimeRestriction(earliest, latest, case["catchup"])
    for asked, theirs in answers[:-1]:
        last = asked[1] and DataInterval(*map(_instant, asked[1]))
        with time_machine.travel(_instant(asked[0]), tick=False):
            info = timetable.next_dagrun_info(
                last_automated_data_interval=last, restriction=restriction
            )
        yield asked, theirs, info and [*map(_text, (info.run_after, *info.data_interval))]
    moment = _instant(case["now"])
    with time_machine.travel(moment, tick=False):
        interval = timetable.infer_manual_data_interval(run_after=moment)
    yield [case["now"], None], answers[-1], list(map(_text, interval))


def _is_named(case: Case, ours: list[str] | None) -> bool:
    """Return True if our answer's instants match the cron expression. `test_walk.py` tests `Cron.matches`."""
    if ours is None:
        return True
    crons = _crons(case)
    moments = [_instant(one) for one in ours]
    if case["type"] == "CronDataIntervalTimetable":
        return crons[0].matches(moments[-2]) and crons[0].after(moments[-2]) == moments[-1]
    return any(cron.matches(moments[0]) for cron in crons)


def _is_where_clocks_change(case: Case, asked: Any, *answers: Any) -> bool:
    texts = [asked[0], *(asked[1] or ()), case["earliest"], case["latest"]]
    for answer in answers:
        texts += answer if isinstance(answer, list) else []
    moments = [_instant(text) for text in texts if text is not None]
    low, high = min(moments), max(moments) + DAY
    # Airflow's answer may depend on the previous tick, so a change of the clocks near that tick counts too.
    low = min(cron.before(low) or low for cron in _crons(case)) - DAY
    return any(low <= change <= high for change in clock_changes(case["arguments"]["timezone"]))


def _crons(case: Case) -> list[Cron]:
    zone = checked_zone(case["arguments"]["timezone"])
    return [
        Cron(one, zone) for one in case["arguments"].get("crons") or [case["arguments"]["cron"]]
    ]


def _instant(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
