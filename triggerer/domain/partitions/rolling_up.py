"""Mappers between periods of different length: one run for many keys (a roll-up), or many runs for one key (a fan-out).

The window of such a mapper lists the parts of the longer period. For example, the parts of a day are its hours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, NamedTuple, Self

from triggerer.domain.partitions.base import PartitionMapper, checked_mapper
from triggerer.domain.partitions.serialization import (
    from_json,
    mapper_from_json,
    mapper_to_json,
    to_json,
)
from triggerer.domain.partitions.temporal import (
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    TemporalMapper,
)
from triggerer.domain.partitions.waiting import WaitForAll, WaitPolicy
from triggerer.domain.partitions.windows import (
    DayWindow,
    Direction,
    MonthWindow,
    QuarterWindow,
    WeekWindow,
    Window,
    YearWindow,
)
from triggerer.errors import DagError, InvalidPartitionKey


class Progress(NamedTuple):
    """The parts that the run of a roll-up has, and the parts that it still waits for."""

    is_satisfied: bool
    missing: frozenset[str]
    """The event keys that have not arrived."""
    deadline: datetime | None
    """From this instant on, fewer parts may be enough; None: the run has no deadline."""
    unreachable: str | None
    """Why the run can never start; None: it can start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupMapper(PartitionMapper):
    """Makes one run for all parts of a period or of a set. For example, the run of a day waits for its 24 hours.

    Args:
        upstream_mapper: Maps the key of a part to the key of the period.
        window: Lists the parts of the period.
        wait_policy: Says how many parts must have arrived; None: all.
    Raises:
        DagError: The window does not fit the mapper: a `DayWindow` needs periods of time, a `SegmentWindow` fixed keys.
    """

    upstream_mapper: PartitionMapper
    window: Window
    wait_policy: WaitPolicy = field(default_factory=WaitForAll)

    is_rollup: ClassVar[bool] = True

    def __post_init__(self) -> None:
        PartitionMapper.__post_init__(self)
        _check_pair(self, self.upstream_mapper, self.window)
        policy: object = self.wait_policy
        if policy is None:
            object.__setattr__(self, "wait_policy", WaitForAll())
        elif not isinstance(policy, WaitPolicy):
            raise DagError(
                f"RollupMapper: wait_policy must be a policy such as WaitForAll(), not {policy!r}"
            )

    def to_downstream(self, key: str) -> str | Collection[str]:
        return self.upstream_mapper.to_downstream(key)

    def to_upstream(self, downstream_key: str) -> frozenset[str]:
        """Return the keys of the events that the run of this key waits for."""
        mapper, window = self.upstream_mapper, self.window
        keys = frozenset(
            key
            for part in window.to_upstream(mapper.decode_downstream(downstream_key))
            for key in mapper.encode_upstream(part, length=window.part)
        )
        if window.part is None or window.direction is Direction.BACKWARD:
            return keys
        # When clocks are set back, an hour occurs twice, and each of its minutes has two event keys. Keep only the
        # minutes of the hour that the run's key names.
        return frozenset(key for key in keys if mapper.to_downstream(key) == downstream_key)

    def canonical_upstream(self, key: str, *, length: timedelta | None = None) -> str:
        return self.upstream_mapper.canonical_upstream(key, length=self.window.part)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.upstream_mapper.to_partition_date(downstream_key)

    def progress(
        self,
        downstream_key: str,
        arrived: Collection[str],
        *,
        now: datetime,
        first_event_at: datetime,
    ) -> Progress:
        """Return whether the run of a key may start, and what it still waits for.

        Args:
            arrived: The keys of the events that have arrived. Keys that the run does not wait for are ignored.
            first_event_at: The instant of the run's first event.
        """
        expected = self.to_upstream(downstream_key)
        matched = expected & {self.canonical_upstream(key) for key in arrived}
        deadline = self.deadline(downstream_key, first_event_at=first_event_at)
        is_overdue = deadline is not None and now >= deadline
        unreachable = self._unreachable(len(expected))
        is_satisfied = unreachable is None and self.wait_policy.is_satisfied(
            len(matched), len(expected), is_overdue=is_overdue
        )
        return Progress(is_satisfied, expected - matched, deadline, unreachable)

    def _unreachable(self, expected: int) -> str | None:
        if expected == 0:
            return "the period has no parts, because clocks skip it"
        if self.wait_policy.is_unreachable(expected):
            return f"{self.wait_policy!r} asks for more than the {expected} parts that there are"
        return None

    def deadline(self, downstream_key: str, *, first_event_at: datetime) -> datetime | None:
        """Return the instant from which `wait_policy` counts the run as overdue; None: never."""
        patience = self.wait_policy.patience
        if patience is None:
            return None
        end = self.window.end(self.upstream_mapper.decode_downstream(downstream_key))
        if end is None or not isinstance(self.upstream_mapper, TemporalMapper):
            return first_event_at + patience
        return self.upstream_mapper.instant(end) + patience

    def serialize(self) -> dict[str, Any]:
        return {
            **PartitionMapper.serialize(self),
            "upstream_mapper": mapper_to_json(self.upstream_mapper),
            "window": to_json(self.window),
            "wait_policy": to_json(self.wait_policy),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        rest = dict(data)
        return cls(
            upstream_mapper=mapper_from_json(rest.pop("upstream_mapper")),
            window=from_json(rest.pop("window"), Window),
            wait_policy=from_json(rest.pop("wait_policy"), WaitPolicy),
            **rest,
        )


_USUAL_PARTS: Final[dict[type[Window], type[TemporalMapper]]] = {
    DayWindow: StartOfHourMapper,
    WeekWindow: StartOfDayMapper,
    MonthWindow: StartOfDayMapper,
    QuarterWindow: StartOfMonthMapper,
    YearWindow: StartOfMonthMapper,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutMapper(PartitionMapper):
    """Makes a run for each part of a period: for example, for each day of a month.

    Args:
        upstream_mapper: Maps the key of an event to the key of the period.
        window: Lists the parts of the period.
        downstream_mapper: A `StartOf…Mapper` that writes the keys of the parts. With any other mapper, each part's text
            is its key. None: the mapper of the window's usual parts (hours of a day, days of a week or month, months of
            a quarter or year).
    Raises:
        DagError: The window does not fit the mapper: a `DayWindow` needs periods of time, a `SegmentWindow` fixed keys.
            Or `downstream_mapper` is None, and the window has no usual parts.
    """

    upstream_mapper: PartitionMapper
    window: Window
    downstream_mapper: PartitionMapper | None = None

    def __post_init__(self) -> None:
        PartitionMapper.__post_init__(self)
        _check_pair(self, self.upstream_mapper, self.window)
        if self.downstream_mapper is None:
            usual = _USUAL_PARTS.get(type(self.window))
            if usual is None:
                raise DagError(
                    f"FanOutMapper: {type(self.window).__name__} has no usual parts",
                    hint="give downstream_mapper=",
                )
            object.__setattr__(self, "downstream_mapper", usual())
        checked_mapper(self.downstream_mapper, "FanOutMapper")

    def to_downstream(self, key: str) -> tuple[str, ...]:
        period = self.upstream_mapper.to_downstream(key)
        if not isinstance(period, str):
            raise InvalidPartitionKey(
                f"partition key {key!r}: {type(self.upstream_mapper).__name__} makes several periods of it",
                key=key,
            )
        parts = self.window.to_upstream(self.upstream_mapper.decode_downstream(period))
        writer = self.downstream_mapper
        if isinstance(writer, TemporalMapper):
            length = self.window.part
            return tuple(key for part in parts for key in writer.keys_of_part(part, length=length))
        return tuple(map(str, parts))

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        assert self.downstream_mapper is not None
        return self.downstream_mapper.to_partition_date(downstream_key)

    def serialize(self) -> dict[str, Any]:
        assert self.downstream_mapper is not None
        return {
            **PartitionMapper.serialize(self),
            "upstream_mapper": mapper_to_json(self.upstream_mapper),
            "window": to_json(self.window),
            "downstream_mapper": mapper_to_json(self.downstream_mapper),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        rest = dict(data)
        return cls(
            upstream_mapper=mapper_from_json(rest.pop("upstream_mapper")),
            window=from_json(rest.pop("window"), Window),
            downstream_mapper=mapper_from_json(rest.pop("downstream_mapper")),
            **rest,
        )


def _check_pair(owner: PartitionMapper, mapper: object, window: object) -> None:
    name = type(owner).__name__
    checked = checked_mapper(mapper, name)
    if not isinstance(window, Window):
        raise DagError(f"{name} takes a window, not {window!r}")
    if checked.expected_decoded_type is not window.expected_decoded_type:
        raise DagError(
            f"{name}: {type(window).__name__} does not fit {type(checked).__name__}",
            hint="windows of time go with StartOf…Mapper, SegmentWindow with FixedKeyMapper",
        )
