"""How the type of `extra` follows from the events; see the table in `triggerer.worker.spark.dataframes.dataframe`."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from triggerer.worker.spark.dataframes.dataframe import EVENT_COLUMNS, to_arrow  # noqa: E402
from triggerer.worker.spark.dataframes.json_shapes import MAX_FIELDS  # noqa: E402


def column(*extras: Any) -> Any:
    return to_arrow([{"id": n, "extra": extra} for n, extra in enumerate(extras)]).column("extra")


def field(name: str, *extras: dict[str, Any]) -> tuple[str, list[Any]]:
    """The type of one field of `extra` and its values."""
    struct = column(*extras).combine_chunks()
    values = struct.field(name)
    return str(values.type), values.to_pylist()


@pytest.mark.parametrize(
    ("values", "arrow_type", "kept"),
    [
        ([1, 2], "int64", [1, 2]),
        ([1, 2.5, None], "double", [1.0, 2.5, None]),
        ([2**60 + 1, 0.5], "double", [float(2**60 + 1), 0.5]),
        ([1.0, float("inf")], "double", [1.0, float("inf")]),
        ([True, None], "bool", [True, None]),
        (["a", None], "string", ["a", None]),
        ([None, None], "string", [None, None]),
        ([1, "a"], "string", ["1", "a"]),
        ([True, 1], "string", ["true", "1"]),
        ([2**70, 1], "string", [str(2**70), "1"]),
        ([10**400, 0.5], "string", [str(10**400), "0.5"]),
        (["a", {"b": [1]}], "string", ["a", '{"b":[1]}']),
        ([{"a": 1}, [1]], "string", ['{"a":1}', "[1]"]),
        ([[1, 2], [], None, [3]], "list<item: int64>", [[1, 2], [], None, [3]]),
        ([[1, "a"], None], "list<item: string>", [["1", "a"], None]),
        ([[], []], "list<item: string>", [[], []]),
        ([[[1], None], [[2.5]]], "list<item: list<item: double>>", [[[1.0], None], [[2.5]]]),
        ([{}, None], "map<string, string>", [[], None]),
        (["\ud800x", "é"], "string", ["?x", "é"]),
    ],
)
def test_a_field_has_the_type_that_all_its_values_have(
    values: list[Any], arrow_type: str, kept: list[Any]
) -> None:
    assert field("v", *({"v": value} for value in values)) == (arrow_type, kept)


def test_a_key_that_some_events_lack_is_null_there() -> None:
    assert column({"a": 1}, {"b": "x"}, {}).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": None, "b": None},
    ]


def test_only_the_field_that_is_mixed_falls_back() -> None:
    given_values = [{"value": {"id": 1, "price": 2.5}}, {"value": {"id": "x", "price": 3}}]
    assert column(*given_values).to_pylist() == [
        {"value": {"id": "1", "price": 2.5}},
        {"value": {"id": "x", "price": 3.0}},
    ]


def test_an_object_that_is_null_is_null_and_not_one_of_nulls() -> None:
    assert column({"v": {"a": 1}}, {"v": None}).to_pylist() == [{"v": {"a": 1}}, {"v": None}]


def test_an_object_keyed_by_user_is_a_map_and_not_a_column_for_each_user() -> None:
    extras = [{"counts": {f"user{n}": n}, "id": n} for n in range(MAX_FIELDS + 5)]
    arrow_type, values = field("counts", *extras)
    assert arrow_type == "map<string, int64>"
    assert values[7] == [("user7", 7)]


def test_structs_inside_one_another_share_the_number_of_fields() -> None:
    wide = {f"k{n}": {f"f{n}.{m}": m for m in range(40)} for n in range(40)}
    struct = column(wide).combine_chunks()
    kinds = {str(struct.field(n).type).partition("<")[0] for n in range(40)}
    assert kinds == {"struct", "map"}


def test_a_value_that_is_nested_too_deep_is_text() -> None:
    deep: Any = 1
    for _ in range(60):
        deep = {"d": deep}
    text = json.dumps(deep)
    assert column({"v": deep}).to_pylist() != []
    assert len(str(column({"v": json.loads(text)}).type)) < 1000


def test_the_columns_are_always_the_same() -> None:
    table = to_arrow([])
    assert tuple(table.column_names) == EVENT_COLUMNS
    assert str(table.schema.field("extra").type) == "map<string, string>"
    assert tuple(to_arrow([{"id": 1}]).column_names) == EVENT_COLUMNS


def test_instants_are_taken_as_text_or_as_datetime_and_are_utc() -> None:
    noon = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
    rows = [{"timestamp": noon}, {"timestamp": "2026-01-01T13:00:00.000005+01:00"}, {}]
    assert to_arrow(rows).column("timestamp").to_pylist() == [noon, noon, None]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.full
@given(st.lists(st.dictionaries(st.text(max_size=5), _json, max_size=5), max_size=8))
def test_any_json_becomes_a_table_with_a_row_for_each_event(
    extras: list[dict[str, Any]],
) -> None:
    table = to_arrow([{"id": n, "extra": extra} for n, extra in enumerate(extras)])
    table.validate(full=True)
    assert table.num_rows == len(extras)
