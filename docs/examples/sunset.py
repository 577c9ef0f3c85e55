"""A timetable of sunsets at a place.

Put it in a package of your own, with an entry point:

    [project.entry-points."triggerer.timetables"]
    sunset = "my_package.sunset:SunsetTimetable"
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from astral import Observer
from astral.sun import sunset

from triggerer.timetables import TickTimetable

# The number of days to search for a sunset: beyond the polar circles, half a year may pass without one.
_REACH = 200


@dataclass(frozen=True)
class SunsetTimetable(TickTimetable):
    """A run at each sunset; no run on a day without a sunset."""

    latitude: float
    longitude: float

    @property
    def summary(self) -> str:
        return "sunset"

    @property
    def description(self) -> str:
        return f"at sunset at {self.latitude:g}, {self.longitude:g}"

    def after(self, moment: datetime) -> datetime | None:
        return next((one for one in self._sunsets(moment, 1) if one > moment), None)

    def before(self, moment: datetime) -> datetime | None:
        return next((one for one in self._sunsets(moment, -1) if one < moment), None)

    def serialize(self) -> dict[str, Any]:
        return asdict(self)

    def _sunsets(self, moment: datetime, direction: int) -> Iterator[datetime]:
        """Yield sunsets: forwards (1) from two days before `moment`, or backwards (-1) from two days after `moment`."""
        first = moment.date() - direction * timedelta(days=2)
        for number in range(_REACH):
            if (found := self._sunset(first + direction * number * timedelta(days=1))) is not None:
                yield found

    def _sunset(self, day: date) -> datetime | None:
        try:
            return sunset(Observer(self.latitude, self.longitude), date=day, tzinfo=UTC)
        except ValueError:  # the sun does not set on this day
            return None
