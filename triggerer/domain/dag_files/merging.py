"""Merges the definitions of all files, and decides which of two contradicting files is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from triggerer.domain.dag_files.parsed import (
    ParsedAsset,
    ParsedDag,
    ParsedFile,
    ParsedWatcher,
    Problem,
    WatcherKey,
)


class AssetKey(NamedTuple):
    """The identity of an asset."""

    name: str
    uri: str


class Incumbents(NamedTuple):
    """The definitions in force (stored and used now), each with the path of its file. A new file cannot change them."""

    dags: Mapping[str, str]
    assets: Mapping[AssetKey, str]
    watchers: Mapping[WatcherKey, str]
    files: frozenset[str] = frozenset()
    """All known files, including files that define nothing in force."""


NO_INCUMBENTS = Incumbents({}, {}, {})


@dataclass(frozen=True, slots=True)
class Folder:
    """The merged definitions of the DAGs folder, each with its file."""

    dags: dict[str, tuple[ParsedDag, str]] = field(default_factory=dict)
    assets: dict[AssetKey, tuple[ParsedAsset, str]] = field(default_factory=dict)
    aliases: frozenset[str] = frozenset()
    watchers: dict[WatcherKey, tuple[ParsedWatcher, str]] = field(default_factory=dict)
    broken_watchers: frozenset[WatcherKey] = frozenset()
    conflicts: dict[str, Problem] = field(default_factory=dict)
    """How a file contradicts another file, by path of the file whose definitions are left out."""


def merge(
    files: Iterable[ParsedFile],
    incumbents: Incumbents = NO_INCUMBENTS,
    *,
    unusable: frozenset[str] = frozenset(),
) -> Folder:
    """Merge the definitions of the files. If two files contradict each other, one file is left out entirely.

    A file that owns a definition in force wins over a file that owns none, so that a new file never replaces a
    definition of an older file. Otherwise, the path that sorts first wins.

    Args:
        unusable: Files that exist but cannot be used now. Their DAGs stay in force. Another file that defines one of
            these DAGs is left out.
    """
    usable = [file for file in files if not file.is_broken]
    ordered = sorted(usable, key=lambda file: (-_defines_incumbent(file, incumbents), file.path))
    dags: dict[str, tuple[ParsedDag, str]] = {}
    assets: dict[AssetKey, tuple[ParsedAsset, str]] = {}
    watchers: dict[WatcherKey, tuple[ParsedWatcher, str]] = {}
    aliases, broken = set[str](), set[WatcherKey]()
    conflicts: dict[str, Problem] = {}
    names: dict[str, ParsedAsset] = {}
    uris: dict[str, ParsedAsset] = {}
    for file in ordered:
        problem = next(_conflicts(file, dags, names, uris, watchers), None)
        problem = problem or next(_replaced_unusable(file, incumbents, unusable), None)
        if problem is not None:
            conflicts[file.path] = problem
            continue
        dags.update({dag.dag_id: (dag, file.path) for dag in file.dags})
        for asset in file.assets:
            names.setdefault(asset.name, asset)
            uris.setdefault(asset.uri, asset)
            _add_asset(assets, AssetKey(asset.name, asset.uri), asset, file.path)
        for watcher in file.watchers:
            known = watchers.get(watcher.key)
            if known is None or file.path < known[1]:
                watchers[watcher.key] = (watcher, file.path)
        aliases.update(file.aliases)
        broken.update(file.broken_watchers)
    return Folder(
        dags, assets, frozenset(aliases), watchers, frozenset(broken - set(watchers)), conflicts
    )


def files_with_lost_definitions(
    paths: Collection[str], files: Collection[ParsedFile], incumbents: Incumbents
) -> set[str]:
    """Return the files among `paths` that have lost a definition: it is in force, but now no file contains it.

    Args:
        files: All files of the folder. A broken file is never returned, because its definitions stay in force.
    """
    usable = [file for file in files if not file.is_broken]
    candidates = {file.path for file in usable} & {*paths}
    if not candidates:
        return set()
    dags = {dag.dag_id for file in usable for dag in file.dags}
    assets = {AssetKey(asset.name, asset.uri) for file in usable for asset in file.assets}
    watchers = {watcher.key for file in usable for watcher in file.watchers}
    watchers |= {key for file in usable for key in file.broken_watchers}
    return {
        *(path for dag_id, path in incumbents.dags.items() if dag_id not in dags),
        *(path for asset, path in incumbents.assets.items() if asset not in assets),
        *(path for key, path in incumbents.watchers.items() if key not in watchers),
    } & candidates


def _defines_incumbent(file: ParsedFile, incumbents: Incumbents) -> bool:
    """Return whether a definition in force comes from this file."""
    return (
        any(incumbents.dags.get(dag.dag_id) == file.path for dag in file.dags)
        or any(incumbents.assets.get(AssetKey(a.name, a.uri)) == file.path for a in file.assets)
        or any(incumbents.watchers.get(watcher.key) == file.path for watcher in file.watchers)
    )


def _add_asset(
    assets: dict[AssetKey, tuple[ParsedAsset, str]], key: AssetKey, asset: ParsedAsset, path: str
) -> None:
    """Add an asset of a file. The file that defines the asset wins over files that import it.

    The result must not depend on the order of the files. Otherwise, each parse could store another version of the
    asset.
    """

    def rank(candidate: ParsedAsset, file: str) -> tuple[bool, bool, str]:
        return (not candidate.location.startswith(f"{file}:"), not candidate.extra, file)

    known = assets.get(key)
    if known is None or rank(asset, path) < rank(*known):
        assets[key] = (asset, path)


def _replaced_unusable(
    file: ParsedFile, incumbents: Incumbents, unusable: frozenset[str]
) -> Iterator[Problem]:
    for dag in file.dags:
        owner = incumbents.dags.get(dag.dag_id)
        if owner in unusable and owner != file.path:
            reason = f"DAG {dag.dag_id!r} belongs to {owner}, which cannot be used as it is now"
            yield _problem(file, dag.location, reason)


def _problem(file: ParsedFile, location: str, reason: str) -> Problem:
    # Leave out the line number if the object is defined in a file that `file` imports: the line is not in `file`.
    name, _, line = location.rpartition(":")
    return Problem(file.path, int(line) if name == file.path else None, reason)


def _conflicts(
    file: ParsedFile,
    dags: Mapping[str, tuple[ParsedDag, str]],
    names: Mapping[str, ParsedAsset],
    uris: Mapping[str, ParsedAsset],
    watchers: Mapping[WatcherKey, tuple[ParsedWatcher, str]],
) -> Iterator[Problem]:
    for dag in file.dags:
        if dag.dag_id in dags:
            other = dags[dag.dag_id][0].location
            yield _problem(file, dag.location, f"DAG {dag.dag_id!r} is also defined at {other}")
    for asset in file.assets:
        for known in (names.get(asset.name, asset), uris.get(asset.uri, asset)):
            if (known.name, known.uri) != (asset.name, asset.uri):
                yield _problem(
                    file,
                    asset.location,
                    f"asset {asset.name!r} ({asset.uri}) at {asset.location} contradicts "
                    f"asset {known.name!r} ({known.uri}) at {known.location}",
                )
    for watcher in file.watchers:
        other_watcher = watchers.get(watcher.key, (watcher, ""))[0]
        if other_watcher.trigger_digest != watcher.trigger_digest:
            yield _problem(
                file,
                watcher.location,
                f"watcher {watcher.name!r} of asset {watcher.asset_name!r} at {watcher.location} has "
                f"another trigger than at {other_watcher.location}",
            )
