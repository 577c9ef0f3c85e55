"""The events of one asset or alias: a lazy sequence that fetches its events by page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias, overload

from triggerer.domain.assets import Asset
from triggerer.worker.protocol import PAGE_SIZE, SPOOL_FROM

_CACHED_PAGES: Final = 8
"""The most pages that a reader caches. Several loops over a sequence can then share its pages."""

_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
"""The characters that make a path a pattern in Hadoop's file systems, and therefore in Spark."""


class SourceRun(NamedTuple):
    """The run whose task emitted an event."""

    dag_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class AssetEvent:
    """An update of an asset, as tasks see it."""

    id: int
    name: str
    uri: str
    extra: dict[str, Any]
    timestamp: datetime
    source_dag_run: SourceRun | None
    """The run whose task emitted the event. None: a watcher, user or other program emitted it."""
    source_task: str | None
    source_watcher: str | None = None
    partition_key: str | None = None

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
            partition_key=row["partition_key"],
        )


EventRow: TypeAlias = dict[str, Any]
"""An event as the executor sends it, see `AssetEvent.from_json`."""


class _PagedReader:
    """Reads a sequence page by page, and caches the pages that were used last.

    Args:
        fetch: Returns the rows of one page. Its arguments are the fields of `triggerer.store.events.run_events.Page`,
            except `last_id`.
        newest_first: True: the newest event has the index 0.
    """

    def __init__(self, fetch: Callable[..., list[EventRow]], *, newest_first: bool) -> None:
        self._fetch = fetch
        self._newest_first = newest_first
        self._pages: dict[int, list[EventRow]] = {}
        """Pages by the index of their first row. The least recently used page is first, and is dropped first."""
        self._ahead = 1

    def at(self, index: int) -> EventRow | None:
        """Return the row at this index, or None if the sequence is shorter.

        The first fetch asks for one row, and each further fetch for twice as many, up to a page. So reading one event
        is cheap, and a loop over indexes needs few fetches.
        """
        page, first = self._cached(index)
        if not page:
            page, first = self.page(index, self._ahead), index
            self._ahead = min(2 * self._ahead, PAGE_SIZE)
        return page[index - first] if page else None

    def rows(self, index: int, count: int) -> list[EventRow]:
        """Return `count` rows from this index on, or fewer at the end of the sequence."""
        found: list[EventRow] = []
        while len(found) < count and (page := self.page(index + len(found), count - len(found))):
            found += page
        return found[:count]

    def page(self, index: int, count: int = PAGE_SIZE) -> list[EventRow]:
        """Return one or more rows from this index on. Return no row if the sequence is shorter.

        Args:
            count: The most rows to fetch if the row at `index` is not cached.
        """
        page, first = self._cached(index)
        if page:
            return page[index - first :]
        # Continue after the previous row if it is cached. Otherwise the store must skip rows.
        known, first = self._cached(index - 1)
        page = self._fetch(
            newest_first=self._newest_first,
            beyond=known[index - 1 - first]["id"] if known else None,
            skip=0 if known else index,
            limit=min(count, PAGE_SIZE),
        )
        if page:
            self._pages[index] = page
        if len(self._pages) > _CACHED_PAGES:
            del self._pages[next(iter(self._pages))]
        return page

    def _cached(self, index: int) -> tuple[list[EventRow], int]:
        """Return the cached page that has this index, and the index of the page's first row.

        The page is empty if no cached page has the index.
        """
        for first, page in self._pages.items():
            if first <= index < first + len(page):
                self._pages[first] = self._pages.pop(first)
                return page, first
        return [], 0


class AssetEvents(Sequence[AssetEvent]):
    """The events of one asset or alias, oldest first. No event is fetched before the sequence is used.

    The sequence ends at `last_id`, so it has no event that is recorded later. An exception is possible on PostgreSQL:
    an event that another transaction was still recording when `last_id` was read.

    A loop fetches page after page. An index or a slice in the middle of a long sequence is slow, because the database
    must skip all rows before it. If the length is known, the database counts from the nearer end.

    Args:
        fetch: Returns the rows of one page, see `_PagedReader`.
        last_id: The id of the newest event; 0: no events.
        total: The length, or a function that returns the length.
        spool: Asks the executor to write all events into Parquet files. Returns the paths (`files`) and the number of
            events (`rows`); None if no files can be written. With the argument `as_text=True`, `extra` is JSON text.
    """

    def __init__(
        self,
        fetch: Callable[..., list[EventRow]],
        last_id: int,
        total: int | Callable[[], int],
        spool: Callable[..., Mapping[str, Any] | None] | None = None,
    ) -> None:
        self._spool = spool
        self._oldest = _PagedReader(fetch, newest_first=False)
        self._newest = _PagedReader(fetch, newest_first=True)
        self._last_id = last_id
        self._total = total

    def __len__(self) -> int:
        if not isinstance(self._total, int):
            self._total = self._total()
        return self._total

    def __bool__(self) -> bool:
        return self._last_id > 0

    @overload
    def __getitem__(self, index: int) -> AssetEvent: ...
    @overload
    def __getitem__(self, index: slice) -> list[AssetEvent]: ...

    def __getitem__(self, index: int | slice) -> AssetEvent | list[AssetEvent]:
        if isinstance(index, slice):
            return [AssetEvent.from_json(row) for row in self._slice(index)]
        row = self._newest.at(-1 - index) if index < 0 else self._at(index)
        if row is None:
            raise IndexError(f"{self!r} have no event {index}")
        return AssetEvent.from_json(row)

    def __iter__(self) -> Iterator[AssetEvent]:
        for page in self.pages():
            yield from map(AssetEvent.from_json, page)

    def __reversed__(self) -> Iterator[AssetEvent]:
        index = 0
        while page := self._newest.page(index):
            yield from map(AssetEvent.from_json, page)
            index += len(page)

    def __repr__(self) -> str:
        total = f"{self._total} " if isinstance(self._total, int) else ""
        return f"<{total}asset events>"

    def pages(self) -> Iterator[list[EventRow]]:
        """Yield pages of up to `PAGE_SIZE` events as rows of plain JSON: the fastest way to read many events.

        Raises:
            LookupError: Events were deleted after they were counted.
        """
        index, last = 0, 0
        while last < self._last_id and (page := self._oldest.page(index)):
            yield page
            index, last = index + len(page), page[-1]["id"]
        if isinstance(self._total, int):
            _expect(index, self._total)

    def to_dataframe(self, spark: Any, *, extra_schema: Any = None) -> Any:
        """Return a Spark DataFrame with one row for each event.

        From 20,000 events on, the executor writes the events into files, and Spark reads these files. Then the rows
        have no order, so sort by `id` if the order matters. The files exist until the run ends.

        Args:
            extra_schema: The type of the column `extra`; None: it is inferred from the events.
                `triggerer.worker.spark.dataframes.dataframe` describes all columns.
        """
        from triggerer.worker.spark.dataframes.dataframe import read_files, to_dataframe

        files = self._files(as_text=extra_schema is not None)
        if files is not None:
            return read_files(spark, files, extra_schema=extra_schema)
        rows = itertools.chain.from_iterable(self.pages())
        return to_dataframe(spark, rows, extra_schema=extra_schema)

    def _files(self, *, as_text: bool) -> Sequence[str] | None:
        """Return files with all events. None: there are few events, or the executor cannot write files.

        Raises:
            LookupError: Events were deleted after they were counted.
        """
        if self._spool is None or len(self) < SPOOL_FROM:
            return None
        written = self._spool(as_text=as_text)
        if written is None:
            return None
        _expect(written["rows"], len(self))
        files: Sequence[str] = written["files"]
        return files

    def uris(self) -> list[str]:
        """Return the distinct `extra["uri"]` of the events in order, for `spark.read.json(events.uris())`.

        In the result, brackets, braces, `*`, `?` and backslashes are escaped by a backslash, because Spark would read
        them as a pattern. Web addresses are not escaped.

        Raises:
            ValueError: An event has no `uri`.
            LookupError: Events were deleted after they were counted.
        """
        found: dict[str, None] = {}
        for row in itertools.chain.from_iterable(self.pages()):
            uri = (row["extra"] or {}).get("uri")
            if not isinstance(uri, str):
                raise ValueError(f"asset event {row['id']} has no text `uri` in its extra")
            found[uri] = None
        return [_literal(uri) for uri in found]

    def _at(self, index: int) -> EventRow | None:
        if isinstance(self._total, int) and self._total // 2 < index < self._total:
            return self._newest.at(self._total - 1 - index)
        return self._oldest.at(index)

    def _slice(self, wanted: slice) -> list[EventRow]:
        start, stop = wanted.start, wanted.stop
        step = 1 if wanted.step is None else wanted.step
        if step > 0 and stop is not None and stop >= 0 and (start is None or start >= 0):
            start = start or 0
            return self._oldest.rows(start, stop - start)[::step]
        if step > 0 and start is not None and start < 0 and (stop is None or stop < 0):
            stop = stop or 0
            return self._newest.rows(-stop, stop - start)[::-1][::step]
        indexes = range(*wanted.indices(len(self)))
        if not indexes:
            return []
        first, last = sorted((indexes[0], indexes[-1]))
        count = last - first + 1
        if len(self) - last < first:
            rows = self._newest.rows(len(self) - 1 - last, count)[::-1]
        else:
            rows = self._oldest.rows(first, count)
        _expect(len(rows), count)
        return rows[::step]


def _literal(uri: str) -> str:
    """Escape the URI so that Spark reads only this object. Web addresses stay unchanged."""
    if uri.startswith(("http:", "https:")):
        return uri
    return _PATTERN.sub(r"\\\g<0>", uri)


def _expect(found: int, wanted: int) -> None:
    if found < wanted:
        raise LookupError(
            f"{wanted} events were asked for and {found} are left: somebody deleted the others while the run was"
            " reading them"
        )
