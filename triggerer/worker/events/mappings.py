"""The mappings of asset events that tasks receive: `triggering_asset_events` and `inlet_events`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from triggerer.domain.assets import Asset, AssetAlias, AssetRef
from triggerer.errors import RunFailed
from triggerer.worker.events.sequences import AssetEvents, EventRow


class QueryEvents(Protocol):
    """Sends a query to the executor and waits for the reply. Any thread of the run's process can call this."""

    def __call__(self, what: str, **fields: Any) -> Any: ...


def _fetcher(
    query: QueryEvents, what: str, last_id: int, **about: str
) -> Callable[..., list[EventRow]]:
    def fetch(**page: Any) -> list[EventRow]:
        rows: list[EventRow] = query(what, about=about, page={"last_id": last_id, **page})
        return rows

    return fetch


def asset_key(key: Asset | str, known: Sequence[Asset]) -> Asset:
    """Return the asset of `known` that equals `key`, or that has `key` as its URI or name.

    Raises:
        KeyError: No asset matches.
    """
    for asset in known:
        if asset == key or key in (asset.uri, asset.name):
            return asset
    raise KeyError(key if isinstance(key, str) else key.uri)


class TriggeringAssetEvents(Mapping[Asset, AssetEvents]):
    """The events that started a run, by asset, or by the asset's name or URI.

    An asset of the schedule may have no event, for instance `b` in `a | b`. Iteration leaves such an asset out, but
    looking it up returns an empty sequence.
    """

    def __init__(self, query: QueryEvents, scheduled: Sequence[Asset] = ()) -> None:
        self._query = query
        self._scheduled = scheduled
        self._known: dict[Asset, AssetEvents] | None = None

    def __getitem__(self, key: Asset | str) -> AssetEvents:
        known = self._read()
        try:
            return known[asset_key(key, list(known))]
        except KeyError:
            asset_key(key, self._scheduled)
            return AssetEvents(lambda **page: [], 0, 0)

    def __iter__(self) -> Iterator[Asset]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __contains__(self, key: object) -> bool:
        return any(asset == key or key in (asset.uri, asset.name) for asset in self._read())

    def _read(self) -> dict[Asset, AssetEvents]:
        if self._known is None:
            known = {}
            for row in self._query("triggering"):
                asset = Asset.identified(row["name"], row["uri"])
                fetch = _fetcher(self._query, "triggering_page", row["last_id"], uri=row["uri"])
                spool = partial(
                    self._query,
                    "spool",
                    about={"uri": row["uri"]},
                    triggering=True,
                    last_id=row["last_id"],
                )
                known[asset] = AssetEvents(fetch, row["last_id"], row["total"], spool)
            self._known = known
        return self._known


class InletEvents(Mapping[Asset | AssetAlias, AssetEvents]):
    """The events of the assets and aliases that a task declares as inlets.

    The events of an inlet are fixed when a task first looks the inlet up. Later events are not included.

    Args:
        inlets: The task's inlets. The first use of the mapping replaces each `AssetRef` by the asset with its name.
    """

    def __init__(self, query: QueryEvents, inlets: Sequence[Asset | AssetAlias | AssetRef]) -> None:
        self._query = query
        self._declared = inlets
        self._found: tuple[Asset | AssetAlias, ...] | None = None
        self._read: dict[Asset | AssetAlias, AssetEvents] = {}

    def __getitem__(self, key: Asset | AssetAlias | str) -> AssetEvents:
        inlet = self._find(key)
        if inlet not in self._read:
            self._read[inlet] = self._open(inlet)
        return self._read[inlet]

    def __iter__(self) -> Iterator[Asset | AssetAlias]:
        return iter(self._inlets())

    def __len__(self) -> int:
        return len(self._inlets())

    def _inlets(self) -> tuple[Asset | AssetAlias, ...]:
        if self._found is None:
            found = (
                find_asset(self._query, one.name) if isinstance(one, AssetRef) else one
                for one in self._declared
            )
            self._found = tuple(dict.fromkeys(found))
        return self._found

    def _find(self, key: Asset | AssetAlias | str) -> Asset | AssetAlias:
        for inlet in self._inlets():
            names = (inlet.name, inlet.uri) if isinstance(inlet, Asset) else (inlet.name,)
            if inlet == key or key in names:
                return inlet
        raise KeyError(f"{key!r} is not among the task's inlets")

    def _open(self, inlet: Asset | AssetAlias) -> AssetEvents:
        about = {"uri": inlet.uri} if isinstance(inlet, Asset) else {"alias": inlet.name}
        last_id = self._query("inlet", **about)
        count = partial(self._query, "inlet_count", **about, last_id=last_id)
        fetch = _fetcher(self._query, "inlet_page", last_id, **about)
        spool = partial(self._query, "spool", about=about, triggering=False, last_id=last_id)
        return AssetEvents(fetch, last_id, count, spool)


def find_asset(query: QueryEvents, name: str) -> Asset:
    """Return the asset with this name.

    Raises:
        RunFailed: No DAG file declares the asset, and no event has named it.
    """
    row = query("asset", name=name)
    if row is None:
        raise RunFailed(f"there is no asset named {name!r}", hint="triggerer assets list")
    return Asset.identified(row["name"], row["uri"])
