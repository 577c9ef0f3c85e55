"""Mappers made of other mappers: mappers that are applied in turn, and a mapper for each part of a key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from triggerer.domain.partitions.base import PartitionMapper, checked_mapper
from triggerer.domain.partitions.keys import checked_keys
from triggerer.domain.partitions.serialization import mapper_from_json, mapper_to_json
from triggerer.errors import InvalidPartitionKey


@dataclass(frozen=True, slots=True, init=False)
class ChainMapper(PartitionMapper):
    """Applies mappers in turn: each gets the keys that the previous mapper returned."""

    mappers: tuple[PartitionMapper, ...]

    def __init__(
        self,
        mapper0: PartitionMapper,
        mapper1: PartitionMapper,
        /,
        *mappers: PartitionMapper,
        max_downstream_keys: int | None = None,
    ) -> None:
        _set(self, (mapper0, mapper1, *mappers), max_downstream_keys)

    def to_downstream(self, key: str) -> str | tuple[str, ...]:
        keys: tuple[str, ...] = (key,)
        for mapper in self.mappers:
            found = [mapper.to_downstream(one) for one in keys]
            keys = tuple(
                one for each in found for one in ((each,) if isinstance(each, str) else each)
            )
        return keys[0] if len(keys) == 1 else keys

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.mappers[-1].to_partition_date(downstream_key)

    def serialize(self) -> dict[str, Any]:
        mappers = [mapper_to_json(one) for one in self.mappers]
        return {**PartitionMapper.serialize(self), "mappers": mappers}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        rest = dict(data)
        return cls(*map(mapper_from_json, rest.pop("mappers")), **rest)


@dataclass(frozen=True, slots=True, init=False)
class ProductMapper(PartitionMapper):
    """Maps keys of several parts, such as `2026-03-10|eu`, with one mapper for each part."""

    mappers: tuple[PartitionMapper, ...]
    delimiter: str

    def __init__(
        self,
        mapper0: PartitionMapper,
        mapper1: PartitionMapper,
        /,
        *mappers: PartitionMapper,
        delimiter: str = "|",
        max_downstream_keys: int | None = None,
    ) -> None:
        (checked,) = checked_keys([delimiter], "ProductMapper: delimiter")
        object.__setattr__(self, "delimiter", checked)
        _set(self, (mapper0, mapper1, *mappers), max_downstream_keys)

    def to_downstream(self, key: str) -> str:
        parts = key.split(self.delimiter)
        if len(parts) != len(self.mappers):
            raise InvalidPartitionKey(
                f"partition key {key!r} has {len(parts)} parts, not {len(self.mappers)}", key=key
            )
        mapped = []
        for mapper, part in zip(self.mappers, parts, strict=True):
            found = mapper.to_downstream(part)
            if not isinstance(found, str):
                raise InvalidPartitionKey(
                    f"partition key {key!r}: {type(mapper).__name__} makes several keys of {part!r}; "
                    "a part of a product must become one key",
                    key=key,
                )
            mapped.append(found)
        return self.delimiter.join(mapped)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        """Return the start of the period, if exactly one part of the key names a period. Otherwise return None."""
        parts = downstream_key.split(self.delimiter)
        if len(parts) != len(self.mappers):
            return None
        pairs = zip(self.mappers, parts, strict=True)
        dates = [date for mapper, part in pairs if (date := mapper.to_partition_date(part))]
        return dates[0] if len(dates) == 1 else None

    def serialize(self) -> dict[str, Any]:
        mappers = [mapper_to_json(one) for one in self.mappers]
        return {**PartitionMapper.serialize(self), "mappers": mappers, "delimiter": self.delimiter}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        rest = dict(data)
        return cls(*map(mapper_from_json, rest.pop("mappers")), **rest)


def _set(
    mapper: ChainMapper | ProductMapper,
    mappers: tuple[PartitionMapper, ...],
    max_downstream_keys: int | None,
) -> None:
    checked = tuple(checked_mapper(one, type(mapper).__name__) for one in mappers)
    object.__setattr__(mapper, "mappers", checked)
    object.__setattr__(mapper, "max_downstream_keys", max_downstream_keys)
    PartitionMapper.__post_init__(mapper)
