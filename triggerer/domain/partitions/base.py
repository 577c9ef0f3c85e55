"""The base class of mappers, which turn the partition keys of events into the keys of runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Self

from triggerer.errors import DagError, InvalidPartitionKey

MOST_KEYS: Final = 1_000
"""The most runs that can share one event, unless its mapper sets `max_downstream_keys`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMapper(ABC):
    """Maps the key of an asset's event ("upstream") to the keys of the runs that use the event ("downstream").

    Mappers are pure values. Mappers with equal arguments are equal.

    Args:
        max_downstream_keys: The most runs that can share one event; None: `MOST_KEYS`. An event for more runs is
            refused.
    """

    max_downstream_keys: int | None = field(default=None)

    is_rollup: ClassVar[bool] = False
    """True if a run waits for several event keys."""
    expected_decoded_type: ClassVar[type] = str
    """The type that `decode_downstream` returns: text, or a datetime on the mapper's clock, without a zone."""

    def __post_init__(self) -> None:
        most = self.max_downstream_keys
        if most is not None and (type(most) is not int or most < 1):
            raise DagError(f"max_downstream_keys must be a whole number from 1, not {most!r}")

    @abstractmethod
    def to_downstream(self, key: str) -> str | Collection[str]:
        """Return the key or keys of the runs that use an event with this key.

        Raises:
            InvalidPartitionKey: This mapper does not accept the key.
        """

    def decode_downstream(self, downstream_key: str) -> Any:
        """Return the value that a run's key stands for, such as the start of a day.

        A window then divides the value into parts, such as the hours of the day.
        """
        return downstream_key

    def encode_upstream(self, decoded: Any, *, length: timedelta | None = None) -> tuple[str, ...]:
        """Return the keys of the events for one part of a run's period, such as one hour of a day.

        Args:
            decoded: The part, as a `Window` lists it.
            length: The part's length if it is less than a day. A clock change can skip or repeat such a part. Then the
                part has no key or two keys. None: the part has exactly one key.
        """
        return (decoded,)

    def canonical_upstream(self, key: str, *, length: timedelta | None = None) -> str:
        """Return the key that `encode_upstream` writes for the part that `key` names.

        Several keys may name one part. This method maps all of them to one key.

        Args:
            length: The length of a part of the window, as for `encode_upstream`.
        """
        return key

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        """Return the UTC instant at which the period of a run's key starts; None: the key names no period."""
        return None

    def serialize(self) -> dict[str, Any]:
        """Return JSON from which `deserialize` makes an equal mapper."""
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
    """Return the distinct keys of the runs that use an event with this key, in order.

    Raises:
        InvalidPartitionKey: The mapper refuses the key, or the event is for too many runs.
    """
    found = mapper.to_downstream(key)
    keys = (found,) if isinstance(found, str) else tuple(dict.fromkeys(found))
    most = mapper.max_downstream_keys or MOST_KEYS
    if len(keys) > most:
        raise InvalidPartitionKey(
            f"partition key {key!r} is for {len(keys)} runs, more than {most}",
            key=key,
            hint="raise max_downstream_keys of the mapper",
        )
    return keys


def checked_mapper(value: object, owner: str) -> PartitionMapper:
    """Return the value if it is a mapper.

    Raises:
        DagError: The value is no mapper. The message names `owner`.
    """
    if not isinstance(value, PartitionMapper):
        raise DagError(f"{owner} takes a partition mapper, not {value!r}")
    return value
