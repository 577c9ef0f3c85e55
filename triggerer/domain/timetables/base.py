"""The base class of timetables, and the values that its methods take and return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from triggerer.errors import DagError


class DataInterval(NamedTuple):
    """The stretch of time whose data a run processes: aware instants, `start` included, `end` not."""

    start: datetime
    end: datetime

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return an interval that starts and ends at one moment."""
        return cls(at, at)


class TimeRestriction(NamedTuple):
    """The limits that a DAG sets for its timetable.

    `earliest` and `latest` are the DAG's `start_date` and `end_date`, both included; None: no limit. Without `catchup`,
    a timetable leaves out missed runs. Most timetables leave out all missed runs except the last.
    """

    earliest: datetime | None
    latest: datetime | None
    catchup: bool


class DagRunInfo(NamedTuple):
    """The next run: it starts at `run_after` or later, and covers `data_interval`."""

    run_after: datetime
    data_interval: DataInterval

    @property
    def logical_date(self) -> datetime:
        """The start of the data interval."""
        return self.data_interval.start

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return a run that is due at a moment, and covers only that moment."""
        return cls(at, DataInterval.exact(at))

    @classmethod
    def interval(cls, start: datetime, end: datetime) -> Self:
        """Return a run that is due at the end of its data interval."""
        return cls(end, DataInterval(start, end))


class Timetable(ABC):
    """Says when the runs of a DAG are due. Instances are immutable, and equal if their arguments are equal.

    - The scheduler calls the timetables of all DAGs in one thread, so a timetable may compute, but must never wait.
    - All instants are aware and in UTC. `triggerer.timetables.now()` returns the present instant.
    - To install a timetable of your own, add an entry point to the group `triggerer.timetables`. The store keeps the
      result of `serialize`.
    """

    __slots__ = ()

    description: str = ""
    """A phrase for people, such as "every day at 06:00 (UTC)"."""
    can_be_scheduled: bool = True
    """False if the timetable never has a run."""
    partitioned: bool = False
    """True if the runs have partition keys: from `partition_key` or, if the schedule has assets, from their events."""
    has_assets: bool = False
    """True if runs wait for assets, or assets start runs."""
    active_runs_limit: int | None = None
    """The most active runs, however high `max_active_runs` is; None: no limit."""

    @property
    def summary(self) -> str:
        """A word or two for a column of a table, such as the cron expression."""
        return type(self).__name__

    @abstractmethod
    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        """Return the next run, whether it is due now or in the future; None: no run until something changes.

        The scheduler calls the method again after each run, after a change of the DAG, and when the returned run is
        due.

        Args:
            last_automated_data_interval: The interval of the last run that the scheduler created; None: no such run.
                Manual runs and backfills do not count.
            restriction: The limits that the DAG sets.
        """

    @abstractmethod
    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """Return the data interval of a run that a user triggers at `run_after`."""

    def partition_key(self, interval: DataInterval) -> str | None:
        """Return the partition key of the run for this data interval; None: no key.

        An event that the run emits gets this key, unless the task sets another. The key must depend only on the
        interval, so that a backfill computes the same key for a past run.
        """
        return None

    def to_partition_date(self, key: str) -> datetime | None:
        """Return the instant from which to search for the run with this key; None: keys do not name instants.

        The first data interval that starts at this instant or later must be the interval with this key.

        Raises:
            InvalidPartitionKey: This timetable never writes such a key.
        """
        return None

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        """Return a restriction that allows every run with a logical date between two instants, both included.

        The restriction may also allow some runs with earlier or later dates.
        """
        return TimeRestriction(start, end, catchup=True)

    def serialize(self) -> dict[str, Any]:
        """Return JSON from which `deserialize` makes an equal timetable."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Return the timetable that `serialize` wrote."""
        return cls(**data)


def checked_instant(value: object, what: str) -> datetime:
    """Return the instant in UTC.

    Raises:
        DagError: The value is no datetime, or has no time zone.
    """
    if not isinstance(value, datetime):
        raise DagError(f"{what} must be a datetime, not {value!r}")
    if value.utcoffset() is None:
        raise DagError(
            f"{what} must have a time zone, and {value!r} has none", hint="for instance tzinfo=UTC"
        )
    return value.astimezone(UTC)


def in_utc(
    last: DataInterval | None, restriction: TimeRestriction
) -> tuple[DataInterval | None, TimeRestriction]:
    """Return both arguments with their instants in UTC.

    In other zones, adding a `timedelta` gives a wrong instant across a clock change.

    Raises:
        DagError: One of the instants is naive.
    """
    earliest, latest, catchup = restriction
    return (
        None
        if last is None
        else DataInterval(*(checked_instant(one, "the last run") for one in last)),
        TimeRestriction(
            None if earliest is None else checked_instant(earliest, "the start"),
            None if latest is None else checked_instant(latest, "the end"),
            catchup,
        ),
    )
