"""A timetable of the trading days of an exchange: one run after each session.

Install it in a package of yours, with an entry point:

    [project.entry-points."triggerer.timetables"]
    trading-days = "my_package.trading_days:TradingDaysTimetable"
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import exchange_calendars

from triggerer.timetables import DataInterval, TickTimetable


@dataclass(frozen=True)
class TradingDaysTimetable(TickTimetable):
    """Makes a run after each session of an exchange: `delay` after the session's close, even if it closes early."""

    exchange: str
    delay: timedelta = timedelta(0)

    @property
    def summary(self) -> str:
        return self.exchange

    @property
    def description(self) -> str:
        return f"after each session of {self.exchange}"

    def after(self, moment: datetime) -> datetime | None:
        closes = _closes(self.exchange)
        position = bisect_right(closes, moment - self.delay)
        # None: the calendar has no later session.
        return closes[position] + self.delay if position < len(closes) else None

    def before(self, moment: datetime) -> datetime | None:
        closes = _closes(self.exchange)
        position = bisect_left(closes, moment - self.delay)
        return closes[position - 1] + self.delay if position else None

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        close = self.at_or_before(run_after)
        return DataInterval.exact(run_after if close is None else close)

    def serialize(self) -> dict[str, Any]:
        return {"exchange": self.exchange, "delay_s": self.delay.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> "TradingDaysTimetable":
        return cls(data["exchange"], timedelta(seconds=data["delay_s"]))


@lru_cache(maxsize=8)
def _closes(exchange: str) -> list[datetime]:
    # The default bounds depend on the day when the service starts. With fixed bounds, each start gets the same closes.
    calendar = exchange_calendars.get_calendar(exchange, start="2006-01-01", end="2027-12-31")
    return [close.to_pydatetime() for close in calendar.closes]
