"""Finds assets for which the DAGs of a new folder wait, and which may get no events once the folder is in use.

An asset is found in two cases:

- In the new folder, no watcher belongs to the asset, and no task has it as an outlet.
- The asset loses all its watchers, even if tasks of the new folder have it as an outlet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.domain.schedules import condition_in_json

Members = Mapping[str, frozenset[Asset]]
"""Maps each alias to its assets: tasks have emitted events of these assets through the alias."""
_Key = tuple[str, str | None]
"""The name and URI of an asset, or the name of an alias and None."""


@dataclass(frozen=True, slots=True)
class UnfedAsset:
    """An asset or alias that DAGs of the new folder wait for, but that may get no events."""

    name: str
    uri: str | None
    """The asset's URI. None: an alias."""
    waiting_dags: tuple[str, ...]
    """The DAGs of the new folder that wait for the asset."""
    lost_watchers: tuple[str, ...]
    """The names of all watchers that the asset has now. The new folder has no watcher of the asset.

    Empty: the asset has no watcher now.
    """
    fed_by: tuple[str, ...]
    """The tasks (`dag.task`) of the new folder that have the asset as an outlet. Empty: nothing feeds the asset."""
    is_new: bool
    """True if the new folder is the cause. False if DAGs wait for the asset already at present, and no watcher or task
    feeds it.
    """


@dataclass(frozen=True, slots=True)
class _Feeders:
    """By asset or alias: the watchers and tasks of a folder that update it, and the DAGs that wait for it."""

    watchers: dict[_Key, list[str]]
    tasks: dict[_Key, list[str]]
    waiting: dict[_Key, list[str]]


def unfed_assets(
    before: Folder, after: Folder, renamed: Mapping[AssetKey, AssetKey], members: Members
) -> list[UnfedAsset]:
    """Return the assets and aliases that DAGs wait for, but that may get no events, sorted by name.

    Args:
        renamed: Maps the present identity of a renamed asset to its new identity.
        members: Maps an alias to the assets to which the alias resolves.
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
