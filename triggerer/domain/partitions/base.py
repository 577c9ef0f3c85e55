"""What maps the partition keys of events to those of runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Self

from triggerer.errors import DagError, InvalidPartitionKey

MOST_KEYS: Final = 1_000
"""An event is for so many runs at most, unless its mapper says otherwise with `max_downstream_keys`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMapper(ABC):
    """Maps the key of an asset's event ("upstream") to the key, or keys, of the runs that it is for ("downstream").

    Mappers are values: they compute, and are equal if they are written alike.

    Args:
        max_downstream_keys: An event that is for more runs is refused; None: `MOST_KEYS`.
    """

    max_downstream_keys: int | None = field(default=None)

    is_rollup: ClassVar[bool] = False
    """Whether a run waits for several keys."""
    expected_decoded_type: ClassVar[type] = str
    """What `decode_downstream` returns: text, or a datetime of the mapper's own clock, without a zone."""

    def __post_init__(self) -> None:
        most = self.max_downstream_keys
        if most is not None and (type(most) is not int or most < 1):
            raise DagError(f"max_downstream_keys must be a whole number from 1, not {most!r}")

    @abstractmethod
    def to_downstream(self, key: str) -> str | Collection[str]:
        """Return the key, or the keys, of the runs that an event with this key is for.

        Raises:
            InvalidPartitionKey: The key is none that this mapper knows.
        """

    def decode_downstream(self, downstream_key: str) -> Any:
        """Return what a key of a run stands for, from which a window counts."""
        return downstream_key

    def encode_upstream(self, decoded: Any, *, length: timedelta | None = None) -> tuple[str, ...]:
        """Return the keys of events for a part that a window has counted.

        Args:
            length: Of a part of a day: where clocks are set there may be none of it, or two. None: it is always one.
        """
        return (decoded,)

    def canonical_upstream(self, key: str) -> str:
        """Return how `encode_upstream` writes the key of an event: the same instant may be written in two ways."""
        return key

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        """Return the instant, in UTC, at which the period of a run's key starts; None: the key is no period."""
        return None

    def serialize(self) -> dict[str, Any]:
        """Return the JSON from which `deserialize` makes an equal mapper."""
        return (
            {}
            if self.max_downstream_keys is None
            else {"max_downstream_keys": self.max_downstream_keys}
        )

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Return the mapper that `serialize` wrote."""
        return cls(**data)


def downstream_keys(mapper: PartitionMapper, key: str) -> tuple[str, ...]:
    """Return the keys of the runs that an event with this key is for, each once, in order.

    Raises:
        InvalidPartitionKey: The mapper refuses the key, or there are too many.
    """
    found = mapper.to_downstream(key)
    keys = (found,) if isinstance(found, str) else tuple(dict.fromkeys(found))
    most = mapper.max_downstream_keys or MOST_KEYS
    if len(keys) > most:
        raise InvalidPartitionKey(
            f"partition key {key!r} is for {len(keys)} runs, more than {most}",
            key=key,
            hint="max_downstream_keys of the mapper allows more",
        )
    return keys


def checked_mapper(value: object, owner: str) -> PartitionMapper:
    """Return the mapper.

    Raises:
        DagError: It is none.
    """
    if not isinstance(value, PartitionMapper):
        raise DagError(f"{owner} takes a partition mapper, not {value!r}")
    return value
