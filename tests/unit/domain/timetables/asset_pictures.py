"""Pictures of schedules that wait for assets: which runs the scheduler's decider creates from events over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import time_machine

from triggerer.domain.assets import Asset
from triggerer.domain.schedules import Schedule
from triggerer.domain.timetables import DagRunInfo, DataInterval, TimeRestriction
from triggerer.scheduler.decide import look
from triggerer.scheduler.looks import DagSnapshot, NewRun, WaitingAsset

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def axis(start: datetime, days: int, column: timedelta) -> tuple[str, str]:
    """The names of the days, and the line below them."""
    width = round(days * DAY / column) + 1
    line, labels = ["·"] * width, [" "] * (width + 12)
    for number in range(days + 1):
        at = round(number * DAY / column)
        line[at] = "|"
        text = (start + number * DAY).strftime("%a %-d")
        labels[at : at + len(text)] = text
    return "".join(labels), "".join(line)


@dataclass(frozen=True)
class AssetPicture:
    """A picture of events and runs. The first row below the axis shows each event as its asset's name.

    Each further row shows a run. The row of a run that takes events has their names, and `^` at the run's creation. The
    row of a run without events has the data interval, and `^`.
    """

    schedule: Schedule
    assets: Sequence[Asset]
    events: Sequence[tuple[timedelta, str]]
    start: datetime
    column: timedelta = timedelta(hours=2)
    days: int = 4

    def draw(self) -> str:
        events = [" "] * (round(self.days * DAY / self.column) + 1)
        for offset, name in self.events:
            events[round(offset / self.column)] = name
        rows = [*axis(self.start, self.days, self.column), "".join(events), *self._rows()]
        return "\n".join(row.rstrip() for row in rows) + "\n"

    def _rows(self) -> list[str]:
        """Look each hour; return a row for each run, which takes its events."""
        waiting: list[tuple[int, str]] = []
        last: DagRunInfo | None = None
        stored: DagRunInfo | None = None
        rows: list[str] = []
        for hour in range(self.days * 24 + 1):
            now = self.start + hour * HOUR
            waiting += [(hour, name) for offset, name in self.events if offset == hour * HOUR]
            with time_machine.travel(now, tick=False):
                found = look(self._snapshot(now, waiting, last, stored), at_most=1, bound=100)
            stored = found.next_info
            for run in found.runs:
                taken = waiting if run.asset_ids else []
                rows.append(self._row(run, taken, now))
                waiting = [] if run.asset_ids else waiting
                last = run.info or last
        return rows

    def _row(self, run: NewRun, taken: list[tuple[int, str]], now: datetime) -> str:
        due = self._place(now)
        cells = [" "] * (due + 1)
        if run.info is not None and not taken:
            first, end = map(self._place, run.info.data_interval)
            cells[max(first, 0) : end] = (
                "[" + "=" * (end - max(first, 0) - 1) if first < end else ""
            )
        for hour, name in taken:
            cells[self._place(self.start + hour * HOUR)] = name
        cells[due] = "^"
        return "".join(cells)

    def _place(self, moment: datetime) -> int:
        return round((moment - self.start) / self.column)

    def _snapshot(
        self,
        now: datetime,
        waiting: list[tuple[int, str]],
        last: DagRunInfo | None,
        stored: DagRunInfo | None,
    ) -> DagSnapshot:
        names = [name for _, name in waiting]
        return DagSnapshot(
            "pictured",
            self.schedule,
            now,
            waiting=tuple(
                WaitingAsset(number, asset.name, asset.uri, names.count(asset.name))
                for number, asset in enumerate(self.assets, 1)
                if asset.name in names
            ),
            restriction=TimeRestriction(self.start, None, catchup=False),
            last_interval=None if last is None else DataInterval(*last.data_interval),
            last_run_after=None if last is None else last.run_after,
            stored_info=stored,
        )
