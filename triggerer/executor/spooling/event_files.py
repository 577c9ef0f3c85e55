"""Writes events into Parquet files, piece by piece, so that the memory does not grow with the number of events.

The type of the column `extra` depends on the JSON of all events:

1. The first pass writes the events with the types of the first piece. If all events fit these types, this pass is the
   only one.
2. If a later piece does not fit, the pass stops writing. The rest of the pass only widens the types.
3. Another pass writes all events again, with the wider types.

Arrow's JSON reader checks whether a piece fits, because Python would be many times slower.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.json as arrow_json
import pyarrow.parquet as parquet

from triggerer.worker.spark.dataframes.arrow_columns import array_of, type_of
from triggerer.worker.spark.dataframes.dataframe import EVENT_COLUMNS
from triggerer.worker.spark.dataframes.json_shapes import (
    Column,
    Kind,
    Shape,
    column_of,
    merged,
    shape_of,
)

FILE_BYTES: Final = 64 * 2**20
MAX_PASSES: Final = 20

Piece = Sequence[Sequence[Any]]
"""Columns of some events, as in `EVENT_COLUMNS`. `extra` is JSON text. A timestamp is a `datetime`, or text in UTC."""
ReadPieces = Callable[[], AsyncIterator[Piece]]
"""Yields the pieces of all events, from the beginning at each call."""


class TooVaried(Exception):
    """The types changed in each pass. The events must be read by pages instead."""


@dataclass
class EventFiles:
    """Writes events into files in `folder`. The folder must be empty at first.

    Args:
        as_text: True: write `extra` as JSON text, without types.
    """

    folder: Path
    as_text: bool = False
    file_bytes: int = FILE_BYTES
    files: list[Path] = field(default_factory=list)
    rows: int = 0
    passes: int = 0
    _shape: Shape | None = None
    """The JSON fields and types of the first piece, widened by each later piece that did not fit."""
    _column: Column | None = None
    _fits: bool = True
    """True as long as all pieces of this pass fit the types with which the pass began."""
    _writer: parquet.ParquetWriter | None = None

    async def write(self, read: ReadPieces) -> None:
        """Write all events.

        Raises:
            TooVaried: The types changed in each pass.
            OSError: The files cannot be written.
        """
        while self.passes < MAX_PASSES:
            self.passes += 1
            if await self._pass(read):
                return
        raise TooVaried

    async def _pass(self, read: ReadPieces) -> bool:
        """Write all events with the types known so far. If the types must be widened, return False without a file."""
        self._fits = True
        self._column = None if self._shape is None else column_of(self._shape)
        try:
            # Read the next piece while a thread converts this piece. The wait for the thread blocks the event loop, but
            # this process has no other work.
            with ThreadPoolExecutor(1) as thread:
                under_way: Future[None] | None = None
                async for piece in read():
                    if under_way is not None:
                        under_way.result()
                    under_way = thread.submit(self._take, piece)
                if under_way is not None:
                    under_way.result()
        finally:
            self._close_file()
        if not self._fits:
            self._discard()
        return self._fits

    def _take(self, piece: Piece) -> None:
        extras = piece[-1]
        if self.as_text:
            self._append(piece, pa.array(extras, pa.string()))
            return
        if self._shape is None or self._column is None:
            self._shape = shape_of(_values(extras))
            self._column = column_of(self._shape)
        array = _fast_array(extras, self._column)
        if array is None:
            values = _values(extras)
            self._shape = merged((self._shape, shape_of(values)))
            wider = column_of(self._shape)
            self._fits = self._fits and wider == self._column
            self._column = wider
            array = array_of(values, wider) if self._fits else None
        if self._fits and array is not None:
            self._append(piece, array.cast(type_of(self._column)))

    def _append(self, piece: Piece, extra: pa.Array) -> None:
        table = pa.table({**dict(zip(EVENT_COLUMNS, _plain(piece), strict=False)), "extra": extra})
        if self._writer is None:
            path = self.folder / f"part-{len(self.files):05}.parquet"
            self._writer = parquet.ParquetWriter(path, table.schema, compression="zstd")
            self.files.append(path)
        self._writer.write_table(table)
        self.rows += table.num_rows
        if self.files[-1].stat().st_size >= self.file_bytes:
            self._close_file()

    def _close_file(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _discard(self) -> None:
        for path in self.files:
            path.unlink()
        self.files.clear()
        self.rows = 0


def _plain(piece: Piece) -> list[pa.Array]:
    """Return the arrays of all columns but `extra`."""
    made = []
    for name, values in zip(EVENT_COLUMNS[:-1], piece, strict=False):
        if name == "id":
            made.append(pa.array(values, pa.int64()))
        elif name != "timestamp":
            made.append(_texts(values))
        elif values and isinstance(values[0], str):
            # SQLite stores instants as text in UTC, without a time zone.
            naive = pa.array(values, pa.string()).cast(pa.timestamp("us"))
            made.append(naive.cast(pa.timestamp("us", tz="UTC")))
        else:
            made.append(pa.array(values, pa.timestamp("us", tz="UTC")))
    return made


def _texts(values: Sequence[str | None]) -> pa.Array:
    first = values[0]
    if values.count(first) == len(values):
        # Usually all values are equal. Repeating one value is faster than converting each value.
        return pa.repeat(pa.scalar(first, pa.string()), len(values))
    return pa.array(values, pa.string())


def _values(extras: Sequence[str | None]) -> list[Any]:
    return orjson.loads(f"[{','.join(one or '{}' for one in extras)}]".encode())  # type: ignore[no-any-return]


def _is_fast(column: Column, *, in_list: bool = False) -> bool:
    """Return whether Arrow's JSON reader can check values against the column."""
    # Arrow 26 makes a broken array of a list whose elements are all null.
    if column.kind is Kind.NOTHING and in_list:
        return False
    in_list |= column.kind is Kind.LIST
    return all(_is_fast(item, in_list=in_list) for item in column.items)


def _fast_array(extras: Sequence[str | None], column: Column) -> pa.Array | None:
    """Convert the JSON texts with Arrow's reader. Return None if a text does not fit the column.

    Also return None if Arrow cannot check whether the texts fit.
    """
    if column.kind is not Kind.STRUCT or not column.is_plain or not _is_fast(column):
        return None
    # If a column had only nulls in earlier pieces, its Arrow type is null. If this piece has a value there, Arrow
    # raises an error, and the caller widens the column.
    schema = pa.schema(list(type_of(column, nothing=pa.null())))
    lines = "\n".join(one or "{}" for one in extras)
    if lines.count("\n") != len(extras) - 1:
        # JSON text from another program may have line breaks. Arrow would read each line as an event.
        return None
    options = arrow_json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="error", newlines_in_values=False
    )
    try:
        data = lines.encode()
        block = arrow_json.ReadOptions(block_size=max(len(data) + 1, 1 << 20))
        table = arrow_json.read_json(io.BytesIO(data), read_options=block, parse_options=options)
        if table.num_rows != len(extras) or table.schema != schema:
            return None
        arrays = [one.combine_chunks() for one in table.columns]
        found = pa.StructArray.from_arrays(arrays, fields=list(table.schema))
        found.validate()
    except (pa.ArrowException, UnicodeEncodeError):
        return None
    return found
