"""Mappers of plain text keys.

`IdentityMapper` keeps each key. `AllowedKeyMapper` keeps the keys of a list, and refuses others. `FixedKeyMapper` maps
all keys to one key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from triggerer.domain.partitions.base import PartitionMapper
from triggerer.errors import DagError, InvalidPartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityMapper(PartitionMapper):
    """Maps each event key to itself: a run has the key of its events."""

    def to_downstream(self, key: str) -> str:
        return key


@dataclass(frozen=True, slots=True, init=False)
class AllowedKeyMapper(PartitionMapper):
    """Maps each allowed event key to itself: a run has the key of its events. Events with another key are refused."""

    allowed_keys: tuple[str, ...]

    def __init__(
        self, allowed_keys: Iterable[str], *, max_downstream_keys: int | None = None
    ) -> None:
        object.__setattr__(self, "allowed_keys", checked_keys(allowed_keys, "AllowedKeyMapper"))
        object.__setattr__(self, "max_downstream_keys", max_downstream_keys)
        PartitionMapper.__post_init__(self)

    def to_downstream(self, key: str) -> str:
        if key not in self.allowed_keys:
            raise InvalidPartitionKey(
                f"partition key {key!r} is none of {', '.join(self.allowed_keys)}", key=key
            )
        return key

    def serialize(self) -> dict[str, Any]:
        return {**PartitionMapper.serialize(self), "allowed_keys": list(self.allowed_keys)}


@dataclass(frozen=True, slots=True, init=False)
class FixedKeyMapper(PartitionMapper):
    """Maps all event keys to one run key.

    In a `RollupMapper` with a `SegmentWindow`, it makes one run for all segments together.
    """

    downstream_key: str

    def __init__(self, downstream_key: str, *, max_downstream_keys: int | None = None) -> None:
        (key,) = checked_keys([downstream_key], "FixedKeyMapper")
        object.__setattr__(self, "downstream_key", key)
        object.__setattr__(self, "max_downstream_keys", max_downstream_keys)
        PartitionMapper.__post_init__(self)

    def to_downstream(self, key: str) -> str:
        return self.downstream_key

    def serialize(self) -> dict[str, Any]:
        return {**PartitionMapper.serialize(self), "downstream_key": self.downstream_key}


def checked_keys(keys: object, owner: str) -> tuple[str, ...]:
    """Return the distinct keys, in order.

    Raises:
        DagError: `keys` is no list of strings, the list is empty, or a string is empty. The message names `owner`.
    """
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise DagError(f"{owner} takes a list of keys, not {keys!r}")
    found = tuple(keys)
    if not found or not all(isinstance(key, str) and key for key in found):
        raise DagError(
            f"{owner} needs at least one key, and each key must be a text that is not empty, not {found!r}"
        )
    return tuple(dict.fromkeys(found))
