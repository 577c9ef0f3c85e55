"""What every timetable answers, and in which terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from triggerer.errors import DagError


class DataInterval(NamedTuple):
    """The stretch of time whose data a run is about: aware instants, `start` included, `end` not."""

    start: datetime
    end: datetime

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return the "interval" of a run that is about a moment."""
        return cls(at, at)


class TimeRestriction(NamedTuple):
    """Which runs a DAG allows.

    `earliest` and `latest`, its `start_date` and `end_date`, are both included; None: no bound. Without
    `catchup`, what lies in the past is left out as well, as far as each timetable says.
    """

    earliest: datetime | None
    latest: datetime | None
    catchup: bool


class DagRunInfo(NamedTuple):
    """The next run: no earlier than `run_after`, for `data_interval`."""

    run_after: datetime
    data_interval: DataInterval

    @property
    def logical_date(self) -> datetime:
        """The start of the data interval."""
        return self.data_interval.start

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return a run at a moment and about it."""
        return cls(at, DataInterval.exact(at))

    @classmethod
    def interval(cls, start: datetime, end: datetime) -> Self:
        """Return a run at the end of its data interval."""
        return cls(end, DataInterval(start, end))


class Timetable(ABC):
    """When the runs of a DAG are due. Instances are immutable, and equal if they answer alike.

    Both questions are asked in the scheduler's process, which has one thread for all DAGs: they compute, and wait for
    nothing. All instants that are given and returned are aware, and in UTC. "Now" is `triggerer.timetables.now()`.
    A timetable of your own is installed with an entry point in the group `triggerer.timetables`, and is stored as what
    `serialize` returns.
    """

    __slots__ = ()

    description: str = ""
    """A phrase for people, such as "every day at 06:00 (UTC)"."""
    can_be_scheduled: bool = True
    """Whether it ever asks for a run by itself."""
    partitioned: bool = False
    """Whether its runs are for partition keys. One of time tells them with `partition_key`."""
    has_assets: bool = False
    """Whether runs wait for assets, or come with them."""
    active_runs_limit: int | None = None
    """At most so many runs may be active at once, whatever `max_active_runs` says; None: no limit of its own."""

    @property
    def summary(self) -> str:
        """A word or two for a column, such as the cron expression."""
        return type(self).__name__

    @abstractmethod
    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        """Return the run that follows, also if it is due only later; None: no run as things stand.

        It is asked again when something changes: a run was made, the DAG's file or the clock.

        Args:
            last_automated_data_interval: Of the last run that was not started by hand; None: there was none.
            restriction: What the DAG allows.
        """

    @abstractmethod
    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """Return the data interval of a run that somebody starts by hand at `run_after`."""

    def partition_key(self, interval: DataInterval) -> str | None:
        """Return the key of a run for this data interval, which the run's events have as well; None: it has none.

        The answer follows from the interval alone: it is asked again for runs of the past, as backfills do.
        """
        return None

    def to_partition_date(self, key: str) -> datetime | None:
        """Return an instant no later than the start of the data interval that has this key, and later than others'.

        None: keys do not tell it.

        Raises:
            InvalidPartitionKey: It is no key of this timetable.
        """
        return None

    def restriction_between(self, start: datetime, end: datetime) -> TimeRestriction:
        """Return a restriction that allows every run whose logical date lies between two instants, both included.

        It may allow others as well, before and after them.
        """
        return TimeRestriction(start, end, catchup=True)

    def serialize(self) -> dict[str, Any]:
        """Return the JSON from which `deserialize` makes an equal timetable."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Return the timetable that `serialize` wrote."""
        return cls(**data)


def checked_instant(value: object, what: str) -> datetime:
    """Return the instant in UTC.

    Raises:
        DagError: It is no datetime, or a naive one.
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
    """Return both with their instants in UTC. Adding hours to an instant of another zone moves its clock instead.

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
