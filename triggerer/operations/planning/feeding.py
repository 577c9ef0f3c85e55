"""Finds assets that DAGs wait for, and that lose their watchers or have no source of events in another folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.domain.schedules import condition_in_json

Members = Mapping[str, frozenset[Asset]]
"""Alias to the assets of the events that were attached to it."""
_Key = tuple[str, str | None]
"""The name and URI of an asset, or the name of an alias and None."""


@dataclass(frozen=True, slots=True)
class UnfedAsset:
    """An asset, or an alias, that DAGs of the new folder wait for."""

    name: str
    uri: str | None
    """None for an alias."""
    waiting_dags: tuple[str, ...]
    """The DAGs of the new folder that wait for it."""
    lost_watchers: tuple[str, ...]
    """The names of its present watchers, if it keeps none of them."""
    fed_by: tuple[str, ...]
    """The tasks (`dag.task`) of the new folder with the asset as an outlet; empty if there is no source of events."""
    is_new: bool
    """True if it has a source of events now, or no DAG waits for it now."""


@dataclass(frozen=True, slots=True)
class _Feeders:
    """The watchers and tasks of a folder by the assets that they feed, and its DAGs by the assets they wait for."""

    watchers: dict[_Key, list[str]]
    tasks: dict[_Key, list[str]]
    waiting: dict[_Key, list[str]]


def unfed_assets(
    before: Folder, after: Folder, renamed: Mapping[AssetKey, AssetKey], members: Members
) -> list[UnfedAsset]:
    """Return, by name, the assets with waiting DAGs that lose all watchers or have no source of events.

    Args:
        renamed: Present identities of assets to their new ones, if a name or URI changes.
    """
    old, new = _feeders(before, members), _feeders(after, members)
    formerly: dict[_Key, _Key] = {
        (now.name, now.uri): (was.name, was.uri) for was, now in renamed.items()
    }
    found = []
    for asset in sorted(new.waiting, key=lambda one: (one[0], one[1] or "")):
        name, uri = asset
        was = formerly.get(asset, asset)
        has_watchers = asset in new.watchers
        lost = () if has_watchers else tuple(old.watchers.get(was, ()))
        fed_by = tuple(new.tasks.get(asset, ()))
        if has_watchers or (fed_by and not lost):
            continue
        was_unfed = was in old.waiting and not (was in old.watchers or was in old.tasks)
        waiting = tuple(new.waiting[asset])
        found.append(UnfedAsset(name, uri, waiting, lost, fed_by, is_new=not was_unfed))
    return found


def waited_for_by(folder: Folder, dag_id: str) -> Set[str]:
    """Return the names of the assets and aliases that a DAG of the folder waits for."""
    if dag_id not in folder.dags:
        return frozenset()
    return {name for name, _ in _leaves(folder.dags[dag_id][0].schedule)}


def _feeders(folder: Folder, members: Members) -> _Feeders:
    found = _Feeders({}, {}, {})
    for key in folder.watchers:
        found.watchers.setdefault((key.asset_name, key.asset_uri), []).append(key.name)
    for dag_id, (dag, _) in sorted(folder.dags.items()):
        for leaf in _leaves(dag.schedule):
            found.waiting.setdefault(leaf, []).append(dag_id)
        for task in dag.tasks:
            for outlet in task["outlets"]:
                for asset in _fed(outlet, members):
                    found.tasks.setdefault(asset, []).append(f"{dag_id}.{task['task_id']}")
    return found


def _fed(outlet: Mapping[str, Any], members: Members) -> Iterator[_Key]:
    match outlet:
        case {"asset": {"name": str(name), "uri": str(uri)}}:
            yield name, uri
            # An event of an asset counts for each alias that resolves to the asset.
            yield from (
                (alias, None)
                for alias, assets in members.items()
                if Asset.identified(name, uri) in assets
            )
        case {"alias": str(alias)}:
            yield alias, None
            yield from ((asset.name, asset.uri) for asset in members.get(alias, ()))


def _leaves(schedule: dict[str, Any] | None) -> Iterator[_Key]:
    condition = condition_in_json(schedule)
    if condition is not None:
        yield from ((asset.name, asset.uri) for asset in assets_of(condition))
        yield from ((alias.name, None) for alias in aliases_of(condition))
