"""Makes a Spark DataFrame of asset events, through Arrow, so that no row crosses to the JVM as a Python object.

The columns are always `EVENT_COLUMNS`. `extra` is a struct whose fields come from the events themselves, much as
`spark.read.json` infers them, so that `df.select("extra.value.*")` works:

| in the JSON, over all events                         | in the DataFrame                            |
|------------------------------------------------------|---------------------------------------------|
| whole numbers that fit 64 bits                       | `bigint`                                    |
| whole and other numbers mixed; NaN and infinities    | `double`                                    |
| true and false                                       | `boolean`                                   |
| text                                                 | `string`                                    |
| objects                                              | `struct`, with a field for every key seen   |
| arrays                                               | `array`, with the type of all elements      |
| a key that some events lack, or null                 | null there                                  |
| nothing but null, or only empty arrays               | `string`, or `array<string>`                |
| different kinds, such as numbers and text            | `string`: text as it is, the rest as JSON   |
| whole numbers beyond 64 bits                         | `string`, with all their digits             |
| objects without a key, or of more than 1,000 keys    | `map<string, ...>`                          |
| deeper than 32 levels                                | `string`, as JSON                           |

The type of `extra` depends on the events of a run. Pass `extra_schema` for a fixed type: Spark then parses each event
by this schema, and values that do not fit become null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from triggerer.worker.spark.dataframes.json_shapes import column_of, shape_of
from triggerer.worker.spark.settings import is_local

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


_PATTERN: Final = re.compile(r"([\[\]{}*?\\])")
_ESCAPED: Final = r"\\\1"
_UPLOADED_AT_ONCE: Final = 100_000
"""The most events in one piece. That many typical events are 30 MB, which Python and the driver both have in memory."""


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
        # Without events, `extra` is a map, so that a query for `extra.value` gives null. With a struct without fields,
        # the query would fail.
        return _create(spark, to_arrow(rows), empty="map<string, string>")

    from pyspark.sql.functions import from_json

    from triggerer.worker.spark.dataframes.arrow_columns import texts_of

    texts = texts_of([row.get("extra") for row in rows])
    frame = _create(spark, _table(rows, texts), empty="string")
    return frame.withColumn("extra", from_json("extra", extra_schema))


def read_files(
    spark: SparkSession, files: Sequence[str], *, extra_schema: StructType | str | None = None
) -> DataFrame:
    """Return a DataFrame of spooled events, see `triggerer.executor.spooling`. Its rows have no order.

    In local mode Spark reads the files. On a cluster and over Connect, the executors often cannot reach the files, so
    this process uploads the rows in pieces.

    Args:
        extra_schema: The type of `extra`, as for `to_dataframe`. If it is given, the files must have `extra` as text.
    """
    if _sees_files(spark):
        # Escape the characters of a path that Hadoop would read as a pattern.
        frame = spark.read.parquet(*(f"file://{_PATTERN.sub(_ESCAPED, path)}" for path in files))
    else:
        frame = _union(_uploaded(spark, files))
    if extra_schema is None:
        return frame

    from pyspark.sql.functions import from_json

    return frame.withColumn("extra", from_json("extra", extra_schema))


def _sees_files(spark: SparkSession) -> bool:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return False
    return is_local(str(spark.sparkContext.master))


def _uploaded(spark: SparkSession, files: Sequence[str]) -> list[DataFrame]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    return [
        spark.createDataFrame(pa.Table.from_batches([batch]))
        for path in files
        for batch in ParquetFile(path).iter_batches(_UPLOADED_AT_ONCE)
    ]


def _union(frames: list[DataFrame]) -> DataFrame:
    """Return the union of DataFrames as a balanced tree. A chain of hundreds would exceed Spark's stack."""
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return _union(frames[:middle]).unionAll(_union(frames[middle:]))


def _create(spark: SparkSession, table: pa.Table, *, empty: str) -> DataFrame:
    if table.num_rows:
        return spark.createDataFrame(table)
    # Spark Connect refuses an Arrow table without rows.
    types = {"id": "bigint", "timestamp": "timestamp", "extra": empty}
    columns = ", ".join(f"{name} {types.get(name, 'string')}" for name in EVENT_COLUMNS)
    return spark.createDataFrame([], columns)


def to_arrow(events: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the Arrow table that `to_dataframe` passes to Spark."""
    from triggerer.worker.spark.dataframes.arrow_columns import array_of

    extras = [row.get("extra") or {} for row in events]
    return _table(events, array_of(extras, column_of(shape_of(extras))))


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
