"""Asset events as tasks read them: lazy sequences, fetched from the executor by page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol, overload

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.execution.protocol import PAGE_SIZE

_PAGES_KEPT: Final = 8
"""Enough for a loop, or two side by side; a sequence of millions does not stay in memory."""


class Ask(Protocol):
    """Puts a question to the executor and waits for the answer; for any thread of the worker."""

    def __call__(self, what: str, **fields: Any) -> Any: ...


class SourceRun(NamedTuple):
    """The run whose task emitted an event."""

    dag_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class AssetEvent:
    """Something that happened to an asset."""

    id: int
    name: str
    uri: str
    extra: dict[str, Any]
    timestamp: datetime
    source_dag_run: SourceRun | None
    """None: the event came from a watcher, or was emitted by hand."""
    source_task: str | None
    source_watcher: str | None = None

    @property
    def asset(self) -> Asset:
        return Asset.identified(self.name, self.uri)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> AssetEvent:
        run_id = row["source_run_id"]
        return cls(
            id=row["id"],
            name=row["asset_name"],
            uri=row["asset_uri"],
            extra=row["extra"],
            timestamp=datetime.fromisoformat(row["timestamp"]),
            source_dag_run=None if run_id is None else SourceRun(row["source_dag"], run_id),
            source_task=row["source_task"],
            source_watcher=row["source_watcher"],
        )


class AssetEvents(Sequence[AssetEvent]):
    """The events of one asset, oldest first; nothing is fetched before it is looked at.

    The sequence is fixed when it is first looked at: what is recorded later is not part of it.
    Iterating holds one page at a time, however long the sequence is.
    """

    def __init__(self, fetch: Callable[[int, int], list[dict[str, Any]]], total: int) -> None:
        self._fetch = fetch
        self._total = total
        self._pages: dict[int, list[dict[str, Any]]] = {}

    def __len__(self) -> int:
        return self._total

    def __bool__(self) -> bool:
        return self._total > 0

    @overload
    def __getitem__(self, index: int) -> AssetEvent: ...
    @overload
    def __getitem__(self, index: slice) -> list[AssetEvent]: ...

    def __getitem__(self, index: int | slice) -> AssetEvent | list[AssetEvent]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(self._total))]
        position = index + self._total if index < 0 else index
        if not 0 <= position < self._total:
            raise IndexError(f"event {index} of {self._total}")
        return self._at(position)

    def __iter__(self) -> Iterator[AssetEvent]:
        for page in self.pages():
            yield from map(AssetEvent.from_json, page)

    def __repr__(self) -> str:
        return f"<{self._total} asset events>"

    def pages(self) -> Iterator[list[dict[str, Any]]]:
        """The events as rows of plain JSON, `PAGE_SIZE` at a time; for those who want many fast."""
        for number in range((self._total + PAGE_SIZE - 1) // PAGE_SIZE):
            yield self._page(number)

    def to_dataframe(self, spark: Any, *, extra_schema: Any = None) -> Any:
        """A Spark DataFrame with one row for each event, without a Python object for any.

        Args:
            extra_schema: The type of the column `extra`, where it is not to be found from the
                events; see `triggerer.spark.dataframe`, also for the other columns.
        """
        from triggerer.spark.dataframe import to_dataframe

        rows = itertools.chain.from_iterable(self.pages())
        return to_dataframe(spark, rows, extra_schema=extra_schema)

    def _at(self, position: int) -> AssetEvent:
        number, offset = divmod(position, PAGE_SIZE)
        return AssetEvent.from_json(self._page(number)[offset])

    def _page(self, number: int) -> list[dict[str, Any]]:
        page = self._pages.pop(number, None)
        if page is None:
            start = number * PAGE_SIZE
            stop = min(start + PAGE_SIZE, self._total)
            page = self._fetch(start, stop)
            if len(page) != stop - start:
                raise LookupError(
                    f"events {start} to {stop} were asked for and {len(page)} are left: somebody"
                    " deleted the others while the run was reading them"
                )
        # Put back at the end: the first of the dict is the one that was not used for longest.
        self._pages[number] = page
        if len(self._pages) > _PAGES_KEPT:
            del self._pages[next(iter(self._pages))]
        return page


def asset_key(key: Asset | str, known: Sequence[Asset]) -> Asset:
    """The asset that `key` means: itself, or the one of `known` with that URI or name.

    Raises:
        KeyError: There is none.
    """
    for asset in known:
        if asset == key or key in (asset.uri, asset.name):
            return asset
    raise KeyError(key if isinstance(key, str) else key.uri)


class TriggeringAssetEvents(Mapping[Asset, AssetEvents]):
    """The events that a run was started for, by asset; also found by an asset's name or URI.

    An asset of the schedule that had no event (one side of `a | b`) has an empty sequence and is
    not among the keys.
    """

    def __init__(self, ask: Ask, scheduled: Sequence[Asset] = ()) -> None:
        self._ask = ask
        self._scheduled = scheduled
        self._known: dict[Asset, AssetEvents] | None = None

    def __getitem__(self, key: Asset | str) -> AssetEvents:
        known = self._read()
        try:
            return known[asset_key(key, list(known))]
        except KeyError:
            asset_key(key, self._scheduled)
            return AssetEvents(lambda start, stop: [], 0)

    def __iter__(self) -> Iterator[Asset]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __contains__(self, key: object) -> bool:
        return any(asset == key or key in (asset.uri, asset.name) for asset in self._read())

    def _read(self) -> dict[Asset, AssetEvents]:
        if self._known is None:
            self._known = {}
            for row in self._ask("triggering"):
                events = AssetEvents(self._fetcher(row["uri"], row["total"]), row["total"])
                self._known[Asset.identified(row["name"], row["uri"])] = events
        return self._known

    def _fetcher(self, uri: str, total: int) -> Callable[[int, int], list[dict[str, Any]]]:
        def fetch(start: int, stop: int) -> list[dict[str, Any]]:
            page: list[dict[str, Any]] = self._ask(
                "triggering_page", uri=uri, total=total, start=start, stop=stop
            )
            return page

        return fetch


class InletEvents(Mapping[Asset | AssetAlias, AssetEvents]):
    """All events so far of the assets and aliases that a task declares as inlets."""

    def __init__(self, ask: Ask, inlets: Sequence[Asset | AssetAlias]) -> None:
        self._ask = ask
        self._inlets = inlets
        self._read: dict[Asset | AssetAlias, AssetEvents] = {}

    def __getitem__(self, key: Asset | AssetAlias | str) -> AssetEvents:
        inlet = self._find(key)
        if inlet not in self._read:
            self._read[inlet] = self._open(inlet)
        return self._read[inlet]

    def __iter__(self) -> Iterator[Asset | AssetAlias]:
        return iter(self._inlets)

    def __len__(self) -> int:
        return len(self._inlets)

    def _find(self, key: Asset | AssetAlias | str) -> Asset | AssetAlias:
        for inlet in self._inlets:
            names = (inlet.name, inlet.uri) if isinstance(inlet, Asset) else (inlet.name,)
            if inlet == key or key in names:
                return inlet
        raise KeyError(f"{key!r} is not among the task's inlets")

    def _open(self, inlet: Asset | AssetAlias) -> AssetEvents:
        about = {"uri": inlet.uri} if isinstance(inlet, Asset) else {"alias": inlet.name}
        extent = self._ask("inlet", **about)

        def fetch(start: int, stop: int) -> list[dict[str, Any]]:
            page: list[dict[str, Any]] = self._ask(
                "inlet_page", **about, **extent, start=start, stop=stop
            )
            return page

        return AssetEvents(fetch, extent["total"])
