"""A column that is read piece by piece gets the type that it would get if all values were read at once."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.worker.spark.dataframes.json_shapes import Kind, column_of, merged, shape_of

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(2**64, 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "text", "2026-01-01", "1"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), inner, max_size=3),
    ),
    max_leaves=8,
)
extras = st.lists(
    st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=3), max_size=12
)


@given(extras, st.lists(st.integers(0, 12), max_size=4))
def test_the_merge_of_pieces_gives_the_columns_of_the_whole(
    whole: list[dict[str, Any]], cuts: list[int]
) -> None:
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    assert column_of(merged(map(shape_of, pieces))) == column_of(shape_of(whole))


def test_an_object_with_too_many_keys_is_a_map_however_it_is_read() -> None:
    pieces = [[{"counts": {f"user{n}": n}}] for n in range(1005)]
    whole = [one for piece in pieces for one in piece]
    column = column_of(merged(map(shape_of, pieces)))
    assert column == column_of(shape_of(whole))
    assert column.items[0].kind is Kind.MAP
    assert column.items[0].items[0].kind is Kind.INTEGER


arrow = pytest.importorskip("pyarrow")


@given(extras, st.lists(st.integers(0, 12), max_size=4), st.booleans())
def test_spooled_files_have_the_columns_and_values_of_the_small_way(
    tmp_path_factory: pytest.TempPathFactory,
    whole: list[dict[str, Any]],
    cuts: list[int],
    is_small: bool,
) -> None:
    import anyio
    from pyarrow import parquet

    from triggerer.executor.spooling.event_files import EventFiles
    from triggerer.worker.spark.dataframes.dataframe import EVENT_COLUMNS, to_arrow

    # Integers beyond 64 bits cannot be stored.
    whole = [one for one in whole if _is_storable(one)]
    rows = [
        {
            "id": n,
            "asset_name": "orders",
            "asset_uri": "x-test://orders",
            "timestamp": f"2026-11-22 06:00:00.{n:06}+00:00",
            "source_watcher": None if n % 2 else "w",
            "extra": orjson.loads(orjson.dumps(extra)),
        }
        for n, extra in enumerate(whole)
    ]
    edges = [0, *sorted(cuts), len(rows)]
    pieces = [rows[a:b] for a, b in itertools.pairwise(edges) if rows[a:b]]

    async def read() -> Any:
        for piece in pieces:
            columns = [[row.get(name) for row in piece] for name in EVENT_COLUMNS]
            columns[3] = [row["timestamp"].removesuffix("+00:00") for row in piece]
            columns[-1] = [orjson.dumps(row["extra"]).decode() for row in piece]
            yield columns

    folder = tmp_path_factory.mktemp("spool")
    files = EventFiles(folder, file_bytes=1 if is_small else 2**26)
    anyio.run(files.write, read)
    assert files.rows == len(rows)
    if not rows:
        assert files.files == []
        return
    expected = to_arrow(rows)
    tables = [parquet.read_table(path) for path in files.files]
    assert [table.schema.field("extra").type for table in tables] == [
        expected.schema.field("extra").type
    ] * len(tables)
    assert tables[0].schema.names == list(EVENT_COLUMNS)
    assert [row for table in tables for row in table.to_pylist()] == expected.to_pylist()


def _is_storable(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(
    ("pieces", "passes"),
    [
        ([[{"n": 1}], [{"n": 2}], [{}]], 1),
        ([[{"n": None}], [{"n": 2}]], 2),
        ([[{"n": 1}], [{"n": "a"}], [{"n": 2}]], 2),
        ([[{"n": 1}], [{"n": 1, "m": {"k": []}}]], 2),
        ([[{"n": 1.5}], [{"n": 1}]], 1),
    ],
)
def test_events_of_one_kind_are_read_once_and_others_again(
    tmp_path: Any, pieces: list[list[dict[str, Any]]], passes: int
) -> None:
    import anyio

    from triggerer.executor.spooling.event_files import EventFiles

    async def read() -> Any:
        for piece in pieces:
            texts = [orjson.dumps(one).decode() for one in piece]
            nothing = [None] * len(piece)
            yield [list(range(len(piece))), *[nothing] * 7, texts]

    files = EventFiles(tmp_path)
    anyio.run(files.write, read)
    assert files.passes == passes


class Frame:
    """Stands for a DataFrame, and has the tables that it was made from."""

    def __init__(self, tables: list[Any]) -> None:
        self.tables = tables

    def unionAll(self, other: Frame) -> Frame:  # noqa: N802  (Spark's name)
        return Frame(self.tables + other.tables)


class RemoteSession:
    """Stands for a session over Connect to which files are uploaded."""

    def createDataFrame(self, table: Any) -> Frame:  # noqa: N802  (Spark's name)
        return Frame([table])


RemoteSession.__module__ = "pyspark.sql.connect.session"


def test_files_are_uploaded_in_pieces_where_spark_does_not_see_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import parquet

    from triggerer.worker.spark.dataframes import dataframe

    monkeypatch.setattr(dataframe, "_UPLOADED_AT_ONCE", 10)
    files = []
    for start in (0, 25):
        table = arrow.table({"id": list(range(start, start + 25))})
        files.append(str(tmp_path / f"{start}.parquet"))
        parquet.write_table(table, files[-1])
    frame: Any = dataframe.read_files(RemoteSession(), files)  # type: ignore[arg-type]
    assert [table.num_rows for table in frame.tables] == [10, 10, 5, 10, 10, 5]
    assert [n for table in frame.tables for n in table["id"].to_pylist()] == list(range(50))
