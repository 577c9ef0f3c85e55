"""Pictures of schedules by partition keys: which runs the scheduler creates from events with keys, over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.unit.domain.timetables.asset_pictures import DAY, HOUR, axis
from triggerer.domain.assets import Asset
from triggerer.domain.partitions.dividing import KeyedEvent
from triggerer.domain.schedules import OnPartitions, schedule_of
from triggerer.scheduler.decide import look
from triggerer.scheduler.dividing import partitioner_of
from triggerer.scheduler.keys_in_memory import KeysInMemory
from triggerer.scheduler.looks import DagSnapshot
from triggerer.timetables import PartitionedAssetTimetable


@dataclass(frozen=True)
class PartitionPicture:
    """A picture of events and runs. Below the axis is a row for each asset, with the keys of the asset's events.

    Each further row is for a run. It has the keys of the run's events, `^` at the run's creation, and the run's key.
    """

    timetable: PartitionedAssetTimetable
    assets: Sequence[Asset]
    events: Sequence[tuple[timedelta, str, str]]
    """(time since the start, name of the asset, key) of each event."""
    start: datetime
    column: timedelta = timedelta(hours=2)
    days: int = 4
    letters: int = 0
    """The number of letters that are shown at the end of each event's key; 0: all."""

    def draw(self) -> str:
        rows = [*axis(self.start, self.days, self.column)]
        for asset in self.assets:
            ours = [(at, key) for at, name, key in self.events if name == asset.name]
            rows.append(self._row(ours) + f"   events of {asset.name}")
        return "\n".join(row.rstrip() for row in [*rows, *self._runs()]) + "\n"

    def _runs(self) -> list[str]:
        """Look each hour; return a row for each due run."""
        schedule = schedule_of(self.timetable)
        assert isinstance(schedule, OnPartitions)
        keys = KeysInMemory(partitioner_of(schedule), None, {})
        rows: list[str] = []
        for hour in range(self.days * 24 + 1):
            now = self.start + hour * HOUR
            keys.add([one for one in self._keyed() if one.timestamp == now], now)
            snapshot = DagSnapshot("pictured", schedule, now, partitions=keys.queue(now))
            for run in look(snapshot, at_most=10, bound=100).runs:
                assert run.partition_key is not None
                taken = [self.events[number] for number in keys.take(run.partition_key)]
                cells = self._row([(at, key) for at, _, key in taken])
                due = round(hour * HOUR / self.column)
                rows.append(f"{cells[:due].ljust(due)}^ {run.partition_key}")
        return rows

    def _keyed(self) -> list[KeyedEvent]:
        uris = {asset.name: asset.uri for asset in self.assets}
        return [
            KeyedEvent(number, 0, name, uris[name], key, self.start + at)
            for number, (at, name, key) in enumerate(self.events)
        ]

    def _row(self, events: Sequence[tuple[timedelta, str]]) -> str:
        cells = [" "] * (round(self.days * DAY / self.column) + 1)
        for at, key in events:
            place, shown = round(at / self.column), key[-self.letters :]
            cells[place : place + len(shown)] = shown
        return "".join(cells)
