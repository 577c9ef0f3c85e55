"""Compares the stored definitions with newly read definitions: which stay, and which assets were renamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.domain.dag_files.parsed import WatcherKey


def with_former_definitions(
    before: Folder, new: Folder, is_unusable: Callable[[str], bool]
) -> Folder:
    """Return `new`, with the definitions that `before` has for unusable files and for the `broken_watchers` of `new`.

    Args:
        is_unusable: Returns whether a file exists but cannot be used now.
    """
    dags = {
        dag_id: found
        for dag_id, found in before.dags.items()
        if dag_id not in new.dags and is_unusable(found[1])
    }
    assets = {
        key: found
        for key, found in before.assets.items()
        if key not in new.assets and is_unusable(found[1])
    }
    watchers = {
        key: found
        for key, found in before.watchers.items()
        if key not in new.watchers and (is_unusable(found[1]) or key in new.broken_watchers)
    }
    return replace(
        new,
        dags={**new.dags, **dags},
        assets={**new.assets, **assets},
        watchers={**new.watchers, **watchers},
    )


def renamed_assets(before: Folder, after: Folder) -> dict[AssetKey, AssetKey]:
    """Map the old identity to the new identity of each asset whose name or URI has changed, but not both.

    The store renames the asset's row, so the asset keeps its watchers and queued events. Recorded events keep their old
    identity.
    """
    free = [key for key in before.assets if key not in after.assets]
    by_name = {key.name: key for key in free}
    by_uri = {key.uri: key for key in free}
    renamed: dict[AssetKey, AssetKey] = {}
    for key in sorted(after.assets.keys() - before.assets.keys()):
        touched = (by_name.get(key.name), by_uri.get(key.uri))
        old = next((one for one in touched if one is not None and one not in renamed), None)
        if old is not None:
            renamed[old] = key
    return renamed


def watchers_under_new_names(
    before: Folder, renamed: dict[AssetKey, AssetKey]
) -> dict[WatcherKey, WatcherKey]:
    """Map the new key of each watcher, after its asset is renamed, to the watcher's present key.

    If the asset is not renamed, the keys are equal.
    """
    found: dict[WatcherKey, WatcherKey] = {}
    for key in before.watchers:
        asset = AssetKey(key.asset_name, key.asset_uri)
        found[WatcherKey(*renamed.get(asset, asset), key.name)] = key
    return found
