"""Schedules of a timetable and assets. The classes hold both; the scheduler implements "or" and "and"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import (
    AssetAll,
    AssetAny,
    Condition,
    condition_from_json,
    condition_to_json,
)
from triggerer.domain.timetables.base import Timetable
from triggerer.domain.timetables.derived import DerivedTimetable
from triggerer.domain.timetables.serialization import timetable_from_json, timetable_to_json
from triggerer.errors import DagError


@dataclass(frozen=True, slots=True, init=False)
class _WithAssets(DerivedTimetable):
    """Combines a timetable with assets. The methods ignore the assets, and return the runs of `timetable`.

    Args:
        timetable: A timetable without assets.
        assets: An asset, an expression, an alias or a list. A list means all of its assets and aliases.
    Raises:
        DagError: `timetable` has assets itself, or `assets` names none.
    """

    timetable: Timetable
    assets: Condition

    _joint: ClassVar[str]

    has_assets = True

    def __init__(
        self, *, timetable: Timetable, assets: Condition | Sequence[Asset | AssetAlias]
    ) -> None:
        object.__setattr__(self, "timetable", _checked_timetable(timetable, type(self).__name__))
        object.__setattr__(self, "assets", checked_assets(assets, type(self).__name__))

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"assets {self._joint} {self.timetable.description}"

    @property
    def summary(self) -> str:
        return f"assets {self._joint} {self.timetable.summary}"

    def serialize(self) -> dict[str, Any]:
        return {
            "timetable": timetable_to_json(self.timetable),
            "assets": condition_to_json(self.assets),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(
            timetable=timetable_from_json(data["timetable"]),
            assets=condition_from_json(data["assets"]),
        )


class AssetOrTimeSchedule(_WithAssets):
    """A run when the assets' events have arrived, and a run whenever the timetable says so."""

    __slots__ = ()
    _joint = "or"


class AssetAndTimeSchedule(_WithAssets):
    """A run once the assets' events have arrived and the timetable's next run is due."""

    __slots__ = ()
    _joint = "and"


def checked_assets(value: object, owner: str) -> Condition:
    """Return the value as an expression. A list requires all of its assets.

    Raises:
        DagError: The value is not an asset, a list of assets, an expression or an alias. Or the list is empty.
    """
    if isinstance(value, Asset | AssetAlias | AssetAll | AssetAny):
        return value
    if isinstance(value, list | tuple) and value:
        return AssetAll(*value)
    raise DagError(
        f"{owner}: assets must be an asset, a list of assets, an expression or an alias, not {value!r}"
    )


def _checked_timetable(value: object, owner: str) -> Timetable:
    if not isinstance(value, Timetable) or value.has_assets:
        raise DagError(f"{owner}: timetable must be a timetable without assets, not {value!r}")
    return value
