"""Asset events as a Spark DataFrame, through Arrow: no row crosses to the JVM as a Python object.

The columns are always `EVENT_COLUMNS`. `extra` is a struct whose fields come from the events themselves, much as
`spark.read.json` infers them, so that `df.select("extra.value.*")` works:

| in the JSON, over all events                         | in the DataFrame                            |
|------------------------------------------------------|---------------------------------------------|
| whole numbers that fit 64 bits                       | `bigint`                                    |
| whole and other numbers mixed; NaN and infinities    | `double`                                    |
| true and false                                       | `boolean`                                   |
| text                                                 | `string`                                    |
| objects                                              | `struct`, with a field for every key seen   |
| arrays                                               | `array` of what all their elements are      |
| a key that some events lack, or null                 | null there                                  |
| nothing but null, or only empty arrays               | `string`, or `array<string>`                |
| kinds mixed (a number here, text or an object there) | `string`: text as it is, the rest as JSON   |
| whole numbers beyond 64 bits                         | `string`, with all their digits             |
| objects without a key, or of more than 1,000 keys    | `map<string, ...>`                          |
| deeper than 32 levels                                | `string`, as JSON                           |

Only the affected field falls back, not the fields around it. So the type of `extra` depends on the events of a run.
Pass `extra_schema` to get a fixed type: Spark then parses each event by it, and values that do not fit become null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

EVENT_COLUMNS: Final = (
    "id",
    "asset_name",
    "asset_uri",
    "timestamp",
    "source_watcher",
    "source_dag",
    "source_run_id",
    "source_task",
    "extra",
)
MAX_FIELDS: Final = 1000
"""The limit for all structs together. Otherwise an object keyed by user or order would add a column for each key."""
MAX_DEPTH: Final = 32


def to_dataframe(
    spark: SparkSession,
    events: Iterable[Mapping[str, Any]],
    *,
    extra_schema: StructType | str | None = None,
) -> DataFrame:
    """Return a DataFrame with a row for each event, in the given order; empty without events.

    Args:
        events: Mappings with the keys `EVENT_COLUMNS`; an absent key is null. `timestamp` is an aware `datetime` or ISO
            8601 text, and `extra` is JSON.
        extra_schema: The type of `extra`, as a `StructType` or in DDL: `"value struct<id: bigint>"`.
    """
    rows = list(events)
    if extra_schema is None:
        # An empty struct is not possible. With a map, `extra.value` is null, and files can store it.
        return _create(spark, to_arrow(rows), empty="map<string, string>")

    from pyspark.sql.functions import from_json

    frame = _create(spark, _table(rows, _texts([row.get("extra") for row in rows])), empty="string")
    return frame.withColumn("extra", from_json("extra", extra_schema))


def _create(spark: SparkSession, table: pa.Table, *, empty: str) -> DataFrame:
    if table.num_rows:
        return spark.createDataFrame(table)
    # Spark Connect refuses a table without rows.
    types = {"id": "bigint", "timestamp": "timestamp", "extra": empty}
    columns = ", ".join(f"{name} {types.get(name, 'string')}" for name in EVENT_COLUMNS)
    return spark.createDataFrame([], columns)


def to_arrow(events: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the Arrow table that `to_dataframe` passes to Spark."""
    extras = [row.get("extra") or {} for row in events]
    return _table(events, _Columns().objects(extras, depth=0))


def _table(events: Sequence[Mapping[str, Any]], extra: pa.Array) -> pa.Table:
    import pyarrow as pa

    types = {"id": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}
    columns = {}
    for name in EVENT_COLUMNS[:-1]:
        values: list[Any] = [row.get(name) for row in events]
        if name == "timestamp":
            values = [_instant(value) for value in values]
        columns[name] = pa.array(values, types.get(name, pa.string()))
    return pa.table({**columns, "extra": extra})


def _instant(value: datetime | str | None) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value is not None and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value


class _Columns:
    """Turns a list of JSON values into one Arrow array, column by column.

    It works on whole lists, never on single values: `set(map(type, ...))` and Arrow's conversions run in C. So 30,000
    events with a dozen fields each take a fraction of a second.
    """

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def build(self, values: list[Any], *, depth: int) -> pa.Array:
        import pyarrow as pa

        kinds = set(map(type, values)) - {NoneType}
        try:
            if kinds == {dict} and depth < MAX_DEPTH:
                return self.objects(values, depth=depth)
            if kinds <= {list, tuple} and kinds and depth < MAX_DEPTH:
                return self._lists(values, depth=depth)
            if kinds == {bool}:
                return pa.array(values, pa.bool_())
            if kinds == {int}:
                return pa.array(values, pa.int64())
            if kinds == {float} or kinds == {int, float}:
                # Converted here, because Arrow refuses a whole number that a double cannot represent exactly.
                return pa.array([None if v is None else float(v) for v in values], pa.float64())
        except (OverflowError, pa.ArrowInvalid):
            # A number is too large for its type.
            pass
        return _texts(values)

    def objects(self, values: list[Any], *, depth: int) -> pa.Array:
        import pyarrow as pa

        keys = list(dict.fromkeys(chain.from_iterable(filter(None, values))))
        names = [_encodable(key) for key in keys]
        # A file cannot store a struct without fields.
        if not names or len(names) > self._fields_left or len(set(names)) < len(names):
            return self._maps(values, depth=depth)
        self._fields_left -= len(names)
        fields = [
            self.build([None if v is None else v.get(key) for v in values], depth=depth + 1)
            for key in keys
        ]
        absent = pa.array([v is None for v in values], pa.bool_())
        return pa.StructArray.from_arrays(fields, names, mask=absent)

    def _maps(self, values: list[Any], *, depth: int) -> pa.Array:
        import pyarrow as pa

        keys = _texts(list(chain.from_iterable(filter(None, values))))
        items = list(chain.from_iterable(v.values() for v in values if v))
        return pa.MapArray.from_arrays(_offsets(values), keys, self.build(items, depth=depth + 1))

    def _lists(self, values: list[Any], *, depth: int) -> pa.Array:
        import pyarrow as pa

        items = list(chain.from_iterable(filter(None, values)))
        return pa.ListArray.from_arrays(_offsets(values), self.build(items, depth=depth + 1))


def _offsets(values: list[Any]) -> pa.Array:
    """Return the start of each list in the flat list. Arrow reads a null here as a list that is null."""
    import pyarrow as pa

    def offsets() -> Iterator[int | None]:
        total = 0
        for value in values:
            yield None if value is None else total
            total += len(value) if value else 0
        yield total

    return pa.array(offsets(), pa.int32())


def _texts(values: list[Any]) -> pa.Array:
    """Return text unchanged, and everything else as JSON."""
    import pyarrow as pa

    texts = [v if v is None or type(v) is str else _json(v) for v in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if v is None else _encodable(v) for v in texts], pa.string())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can escape but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
