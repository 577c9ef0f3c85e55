"""Random cases for the comparison with Airflow.

A case has a timetable, the DAG's start, end and `catchup`, and a clock that moves on after each run.
"""

import json
import random
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

ZONES = (
    "UTC", "Europe/Zurich", "Europe/London", "Europe/Dublin", "America/New_York", "America/Los_Angeles",
    "America/St_Johns", "America/Sao_Paulo", "America/Santiago", "America/Havana", "Africa/Casablanca", "Africa/Cairo",
    "Asia/Kolkata", "Asia/Kathmandu", "Asia/Tehran", "Asia/Beirut", "Australia/Sydney", "Australia/Lord_Howe",
    "Pacific/Apia", "Pacific/Chatham",
)  # fmt: skip
FIRST_YEAR, LAST_YEAR = 1996, 2037
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly", "@midnight", "@annually")  # fmt: skip


@cache
def clock_changes(zone: str) -> tuple[datetime, ...]:
    """Return the minutes, in UTC, at which the clocks of a zone are set."""
    at, end = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(LAST_YEAR, 12, 1, tzinfo=UTC)
    info, found = ZoneInfo(zone), []
    while at < end:
        following = at + timedelta(days=1)
        if at.astimezone(info).utcoffset() != following.astimezone(info).utcoffset():
            low, high = at, following
            while high - low > timedelta(minutes=1):
                middle = low + (high - low) / 2
                same = middle.astimezone(info).utcoffset() == at.astimezone(info).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high.replace(second=0, microsecond=0))
        at = following
    return tuple(found)


class Cases:
    """Draws random cases. Equal seeds give equal cases."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def draw(self, number: int, steps: int = 6) -> list[dict[str, Any]]:
        return [self.case(steps) for _ in range(number)]

    def case(self, steps: int) -> dict[str, Any]:
        zone = self.random.choice(ZONES)
        now = self.moment(zone)
        kind, arguments = self.timetable(zone, now)
        last = None
        if self.random.random() < 0.5:
            end = self.around(now, before=0.95)
            last = [end - self.duration() * self.random.choice((0, 1)), end]
        earliest = self.around(now, before=0.8) if self.random.random() < 0.6 else None
        latest = self.around(now, before=0.1) if self.random.random() < 0.2 else None
        return {
            "type": kind,
            "arguments": arguments,
            "now": now.isoformat(),
            "last": last and [one.isoformat() for one in last],
            "earliest": earliest and earliest.isoformat(),
            "latest": latest and latest.isoformat(),
            "catchup": self.random.random() < 0.5,
            "delays": [self.delay_s() for _ in range(steps)],
        }

    def moment(self, zone: str) -> datetime:
        changes = clock_changes(zone)
        if changes and self.random.random() < 0.5:
            moment = self.random.choice(changes)
            moment += timedelta(minutes=self.random.randint(-36 * 60, 6 * 60))
        else:
            start = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
            moment = start + timedelta(minutes=self.random.randrange(40 * 365 * 1440))
        shape = self.random.random()
        if shape < 0.3:
            return moment.replace(minute=0)
        return moment + timedelta(
            microseconds=self.random.randrange(60_000_000) if shape < 0.5 else 0
        )

    def around(self, now: datetime, *, before: float) -> datetime:
        gap = self.duration() * self.random.choice((0.5, 1, 3))
        moment = now - gap if self.random.random() < before else now + gap
        return (
            moment.replace(minute=0, second=0, microsecond=0)
            if self.random.random() < 0.5
            else moment
        )

    def duration(self) -> timedelta:
        unit = self.random.choice((60, 3600, 86400, 7 * 86400))
        return timedelta(seconds=unit * self.random.randint(1, 12))

    def delay_s(self) -> int:
        return self.random.choice((0, 1, 40, 400, 3000, self.random.randrange(40 * 86400)))

    def timetable(self, zone: str, now: datetime) -> tuple[str, dict[str, Any]]:
        kind = self.random.choice(
            ["CronDataIntervalTimetable", "CronTriggerTimetable"] * 4
            + ["MultipleCronTriggerTimetable", "DeltaDataIntervalTimetable", "DeltaTriggerTimetable",
               "EventsTimetable", "OnceTimetable", "NullTimetable", "ContinuousTimetable"]
        )  # fmt: skip
        interval_s = 0 if self.random.random() < 0.6 else int(self.duration().total_seconds())
        match kind:
            case "CronDataIntervalTimetable":
                return kind, {"cron": self.cron(), "timezone": zone}
            case "CronTriggerTimetable":
                allowed = self.random.choice(
                    (False, False, True, int(self.duration().total_seconds()))
                )
                return kind, {
                    "cron": self.cron(),
                    "timezone": zone,
                    "interval": interval_s,
                    "run_immediately": allowed,
                }
            case "MultipleCronTriggerTimetable":
                crons = [self.cron() for _ in range(self.random.randint(1, 3))]
                return kind, {"crons": crons, "timezone": zone}
            case "DeltaDataIntervalTimetable":
                return kind, {"delta": int(self.duration().total_seconds())}
            case "DeltaTriggerTimetable":
                return kind, {"delta": int(self.duration().total_seconds()), "interval": interval_s}
            case "EventsTimetable":
                dates = [
                    self.around(now, before=0.5).isoformat()
                    for _ in range(self.random.randint(0, 6))
                ]
                return kind, {
                    "event_dates": dates,
                    "restrict_to_events": self.random.random() < 0.5,
                }
            case _:
                return kind, {}

    def cron(self) -> str:
        shape = self.random.random()
        if shape < 0.1:
            return self.random.choice(_PRESETS)
        minute = self.field(0, 59, often=(0, 15, 30, 45))
        hour = self.field(0, 23, often=(0, 1, 2, 3))
        fields = [minute, hour, self.day_of_month(), self.month(), self.day_of_week()]
        if self.random.random() < 0.1:
            fields.append(self.field(0, 59, often=(0, 30)))
        return " ".join(fields)

    def field(self, low: int, high: int, *, often: tuple[int, ...]) -> str:
        shape = self.random.random()
        if shape < 0.25:
            return "*"
        if shape < 0.6:
            return str(self.random.choice(often))
        if shape < 0.75:
            return f"*/{self.random.choice((2, 3, 5, 7, 10, 20))}"
        if shape < 0.85:
            first = self.random.randint(low, high - 1)
            return f"{first}-{self.random.randint(first + 1, high)}{self.random.choice(('', '/2', '/3'))}"
        return ",".join(
            str(self.random.randint(low, high)) for _ in range(self.random.randint(1, 3))
        )

    def day_of_month(self) -> str:
        shape = self.random.random()
        if shape < 0.7:
            return "*"
        if shape < 0.78:
            return "L"
        if shape < 0.82:
            return f"{self.random.randint(1, 31)}W"
        return self.field(1, 31, often=(1, 15, 29, 30, 31))

    def month(self) -> str:
        shape = self.random.random()
        if shape < 0.8:
            return "*"
        if shape < 0.9:
            return ",".join(self.random.sample(_MONTHS, self.random.randint(1, 3)))
        return self.field(1, 12, often=(2, 3, 4, 10, 11))

    def day_of_week(self) -> str:
        shape = self.random.random()
        if shape < 0.65:
            return "*"
        if shape < 0.75:
            return f"{self.random.choice(_DAYS)}#{self.random.randint(1, 5)}"
        if shape < 0.8:
            return f"L{self.random.randint(0, 6)}"
        if shape < 0.9:
            return self.random.choice(("mon-fri", "sat,sun", "tue-thu", "7", "1-5", "sun"))
        return self.field(0, 6, often=(0, 1, 5))


if __name__ == "__main__":
    print(json.dumps(Cases(1).draw(5), indent=1))
