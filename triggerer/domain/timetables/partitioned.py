"""A schedule on assets whose events have partition keys: one run for each key, once the key's events have arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import (
    Condition,
    assets_of,
    condition_from_json,
    condition_to_json,
)
from triggerer.domain.partitions.base import PartitionMapper, checked_mapper
from triggerer.domain.partitions.keys import IdentityMapper
from triggerer.domain.partitions.serialization import mapper_from_json, mapper_to_json
from triggerer.domain.timetables.base import (
    DagRunInfo,
    DataInterval,
    TimeRestriction,
    Timetable,
    checked_instant,
)
from triggerer.domain.timetables.with_assets import checked_assets
from triggerer.errors import DagError


@dataclass(frozen=True, slots=True, init=False)
class PartitionedAssetTimetable(Timetable):
    """A run for each partition key, once the key's events make the asset expression true.

    Mappers turn the key of an event into the keys of runs.

    Args:
        assets: An asset, an expression, or a list, which means all of its assets.
        partition_mapper_config: The mapper of event keys to run keys, by asset of the expression.
        default_partition_mapper: The mapper of the other assets.
    Raises:
        DagError: An argument is invalid, or a mapper is for an asset outside the expression.
    """

    assets: Condition
    mappers: tuple[tuple[Asset, PartitionMapper], ...]
    default_partition_mapper: PartitionMapper

    can_be_scheduled = False
    partitioned = True
    has_assets = True

    def __init__(
        self,
        *,
        assets: Condition | Sequence[Asset | AssetAlias],
        partition_mapper_config: Mapping[Any, PartitionMapper] | None = None,
        default_partition_mapper: PartitionMapper = IdentityMapper(),  # noqa: B008  (a value)
    ) -> None:
        name = type(self).__name__
        condition = checked_assets(assets, name)
        known, mappers = set(assets_of(condition)), {}
        for asset, mapper in (partition_mapper_config or {}).items():
            if asset not in known:
                raise DagError(f"{name}: a mapper is for {asset!r}, which is none of its assets")
            mappers[asset] = checked_mapper(mapper, name)
        object.__setattr__(self, "assets", condition)
        object.__setattr__(
            self, "mappers", tuple(sorted(mappers.items(), key=lambda one: one[0].name))
        )
        object.__setattr__(
            self, "default_partition_mapper", checked_mapper(default_partition_mapper, name)
        )

    @property
    def description(self) -> str:  # type: ignore[override]
        return "for each partition key, once events of all its assets have arrived"

    @property
    def summary(self) -> str:
        return "partitioned assets"

    def mapper_of(self, asset: Asset) -> PartitionMapper:
        """Return the mapper for the keys of an asset's events."""
        return dict(self.mappers).get(asset, self.default_partition_mapper)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        return None

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval.exact(checked_instant(run_after, "run_after"))

    def serialize(self) -> dict[str, Any]:
        return {
            "assets": condition_to_json(self.assets),
            "mappers": [
                {"asset": {"name": asset.name, "uri": asset.uri}, "mapper": mapper_to_json(mapper)}
                for asset, mapper in self.mappers
            ],
            "default_partition_mapper": mapper_to_json(self.default_partition_mapper),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            assets=condition_from_json(data["assets"]),
            partition_mapper_config={
                Asset.identified(one["asset"]["name"], one["asset"]["uri"]): mapper_from_json(
                    one["mapper"]
                )
                for one in data["mappers"]
            },
            default_partition_mapper=mapper_from_json(data["default_partition_mapper"]),
        )
