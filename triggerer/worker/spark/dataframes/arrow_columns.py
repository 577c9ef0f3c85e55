"""Makes Arrow arrays from JSON values. The types of the columns are known already."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from triggerer.worker.spark.dataframes.json_shapes import Column, Kind, encodable


def array_of(values: list[Any], column: Column) -> pa.Array:
    """Return the array of a column. Each value must fit the column's type."""
    match column.kind:
        case Kind.STRUCT:
            fields = [
                array_of([None if v is None else v.get(key) for v in values], item)
                for (key, _), item in zip(column.names, column.items, strict=True)
            ]
            absent = pa.array([v is None for v in values], pa.bool_())
            names = [name for _, name in column.names]
            return pa.StructArray.from_arrays(fields, names, mask=absent)
        case Kind.MAP:
            keys = texts_of(list(chain.from_iterable(filter(None, values))))
            items = list(chain.from_iterable(v.values() for v in values if v))
            return pa.MapArray.from_arrays(_offsets(values), keys, array_of(items, column.items[0]))
        case Kind.LIST:
            items = list(chain.from_iterable(filter(None, values)))
            return pa.ListArray.from_arrays(_offsets(values), array_of(items, column.items[0]))
        case Kind.BOOLEAN:
            return pa.array(values, pa.bool_())
        case Kind.INTEGER:
            return pa.array(values, pa.int64())
        case Kind.DOUBLE:
            # Python converts the values, because Arrow refuses a whole number that a double cannot represent exactly.
            return pa.array([None if v is None else float(v) for v in values], pa.float64())
        case _:
            return texts_of(values)


def type_of(column: Column, *, nothing: pa.DataType | None = None) -> pa.DataType:
    """Return a column's Arrow type.

    Args:
        nothing: The type for a column that has no value in any row. None: text.
    """
    items = [type_of(item, nothing=nothing) for item in column.items]
    match column.kind:
        case Kind.STRUCT:
            names = [name for _, name in column.names]
            return pa.struct([pa.field(n, kind) for n, kind in zip(names, items, strict=True)])
        case Kind.MAP:
            return pa.map_(pa.string(), items[0])
        case Kind.LIST:
            return pa.list_(items[0])
        case Kind.BOOLEAN:
            return pa.bool_()
        case Kind.INTEGER:
            return pa.int64()
        case Kind.DOUBLE:
            return pa.float64()
        case Kind.NOTHING:
            return nothing or pa.string()
        case _:
            return pa.string()


def texts_of(values: list[Any]) -> pa.Array:
    """Return an array of text: text unchanged, and every other value as JSON."""
    texts = [v if v is None or type(v) is str else _json(v) for v in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if v is None else encodable(v) for v in texts], pa.string())


def _offsets(values: list[Any]) -> pa.Array:
    """Return where each list starts in the flat list of all elements. A null list has a null start."""

    def offsets() -> Iterator[int | None]:
        total = 0
        for value in values:
            yield None if value is None else total
            total += len(value) if value else 0
        yield total

    return pa.array(offsets(), pa.int32())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
