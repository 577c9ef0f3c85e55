"""Finds the assets that new events name. An asset that does not exist is created, although no DAG declares it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.assets import Asset
from triggerer.errors import AssetConflict
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.script import Script, database_instant, perform
from triggerer.store.database.statement import ParameterRows, Statement, in_list, parameter_rows

_log = LazyLogger(__name__)

_NAMED_IN_LOG: Final = 10
_FIND: Final = Statement(
    "SELECT id, name, uri FROM asset WHERE name {IN_NAMES} OR uri {IN_URIS}",
    IN_NAMES=in_list("names", "text"),
    IN_URIS=in_list("uris", "text"),
)
# The rows are sorted, so that two transactions that create the same assets cannot deadlock. ON CONFLICT is needed,
# because another transaction may create an asset at this moment. See `alias_attachment` for "WHERE true".
_CREATE: Final = Statement(
    """
INSERT INTO asset (name, uri, "group", extra, created_at)
SELECT a.name, a.uri, 'asset', '{{}}', {NOW} FROM {ASSETS} AS a WHERE true ORDER BY a.name, a.uri
ON CONFLICT DO NOTHING
""",
    NOW=("{now}", "{now}::timestamptz"),
    ASSETS=parameter_rows(name="text", uri="text"),
)


@dataclass(frozen=True, slots=True)
class StoredAsset:
    """The identity of an asset's row."""

    id: int
    name: str
    uri: str


async def ensure_asset(
    session: AsyncSession, *, name: str | None = None, uri: str | None = None
) -> StoredAsset:
    """Return the asset with this name and URI. If it does not exist, create it, and log a warning.

    If only a name or only a URI is given, the asset is searched by that string. A new asset then gets the string as
    both name and URI.

    Raises:
        AssetConflict: The name belongs to an asset with another URI, or the URI to an asset with another name.
        DagError: Neither name nor URI is given, or one of them is not valid.
    """
    declared = Asset(uri=uri, name=name)
    if name and uri:
        (found,) = (await ensure_assets(session, [declared])).values()
        return found
    wanted = (declared.name, None) if name else (None, declared.uri)
    known = await perform(session, _find([wanted]))
    if known:
        return known[0]
    (found,) = (await ensure_assets(session, [declared])).values()
    return found


async def ensure_assets(session: AsyncSession, assets: Iterable[Asset]) -> dict[Asset, StoredAsset]:
    """Return the stored row of each asset. Assets that do not exist are created, with a warning in the log.

    Raises:
        AssetConflict: A name belongs to an asset with another URI, or a URI to an asset with another name.
    """
    found, created = await perform(session, _ensure(sorted(set(assets), key=_identity)))
    if len(created) > _NAMED_IN_LOG:
        _log.warning(
            "assets that no DAG declares were created",
            count=len(created),
            first=[asset.name for asset in created[:_NAMED_IN_LOG]],
        )
    else:
        for asset in created:
            _log.warning(
                "an asset that no DAG declares was created", name=asset.name, uri=asset.uri
            )
    return found


def _ensure(assets: Sequence[Asset]) -> Script[tuple[dict[Asset, StoredAsset], list[Asset]]]:
    found = yield from _matches(assets)
    missing = [asset for asset in assets if asset not in found]
    if missing:
        now = yield from database_instant()
        yield _CREATE(rows=ParameterRows([_identity(asset) for asset in missing]), now=now)
        found |= yield from _matches(missing)
    return found, missing


def _matches(assets: Sequence[Asset]) -> Script[dict[Asset, StoredAsset]]:
    """Return the stored row of each asset that exists.

    Raises:
        AssetConflict: A name belongs to an asset with another URI, or a URI to an asset with another name.
    """
    rows = yield from _find([_identity(asset) for asset in assets])
    by_name = {row.name: row for row in rows}
    by_uri = {row.uri: row for row in rows}
    found = {}
    for asset in assets:
        # At most two rows: names are unique, and URIs are unique.
        candidates = {by_name.get(asset.name), by_uri.get(asset.uri)}
        known = [row for row in candidates if row is not None]
        if len(candidates) == len(known) == 1:
            found[asset] = known[0]
        elif known:
            others = ", ".join(f"{row.name!r} is {row.uri!r}" for row in known)
            raise AssetConflict(
                f"there is no asset {asset.name!r} with the URI {asset.uri!r}: {others}"
            )
    return found


def _find(identities: Sequence[tuple[str | None, str | None]]) -> Script[list[StoredAsset]]:
    """Return the assets with one of these names or URIs."""
    names = [name for name, _ in identities if name is not None]
    uris = [uri for _, uri in identities if uri is not None]
    rows: Sequence[Sequence[Any]] = yield _FIND(names=names, uris=uris)
    return [StoredAsset(*row) for row in rows]


def _identity(asset: Asset) -> tuple[str, str]:
    return asset.name, asset.uri
