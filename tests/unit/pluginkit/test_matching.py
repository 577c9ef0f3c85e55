"""Conditions and selections over messages, as JSON."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.errors import DagError
from triggerer.pluginkit.matching import (
    canonical,
    compile_extra,
    compile_match,
    compile_path,
    selected_by,
)

ATTRIBUTES = {"key": lambda message: message["key"], "headers": lambda message: message["headers"]}
MESSAGE = {"key": "order-7", "headers": {"source": "shop"}}
VALUE = {
    "carrier": "AA",
    "delay": 20,
    "cancelled": False,
    "note": None,
    "a.b": 1,
    "order": {"items": [{"sku": "x"}, {"sku": "y"}]},
}


def matches(match: Mapping[str, Any] | None, value: Any = VALUE) -> bool:
    test = compile_match(match, ATTRIBUTES)
    return test is None or test(MESSAGE, value)


@pytest.mark.parametrize(
    "match",
    [
        None,
        {},
        {"carrier": "AA"},
        {"carrier": ["UA", "AA"]},
        {"delay": {"gt": 19, "le": 20}},
        {"delay": {"ge": 20, "lt": 21}},
        {"cancelled": False},
        {"note": None},
        {"note": {"exists": True}},
        {"missing": {"exists": False}},
        {"order.items.1.sku": "y"},
        {"order": {"eq": VALUE["order"]}},
        {"order.items": {"contains": {"sku": "x"}}},
        {"carrier": {"contains": "A"}},
        {"carrier": {"ne": "UA"}},
        {"carrier": {"not_in": ["UA", "DL"]}},
        {"carrier": {"gt": "A"}},
        {r"a\.b": 1},
        {"@key": {"regex": "^order-"}},
        {"@headers.source": "shop", "@value.carrier": "AA"},
    ],
)
def test_a_condition_that_holds_matches(match: Mapping[str, Any] | None) -> None:
    assert matches(match)


@pytest.mark.parametrize(
    "match",
    [
        {"carrier": "UA"},
        {"carrier": ["UA", "DL"]},
        {"carrier": "AA", "delay": 21},
        {"delay": {"gt": 20}},
        {"cancelled": 0},  # JSON's false is not its 0
        {"cancelled": {"lt": 1}},
        {"missing": "AA"},
        {"missing": None},
        {"missing": {"ne": "AA"}},
        {"missing": {"not_in": ["AA"]}},
        {"carrier": {"exists": False}},
        {"carrier": {"gt": 5}},
        {"delay": {"gt": "5"}},
        {"delay": {"regex": "2"}},
        {"delay": ["20"]},
        {"order.items.2.sku": "y"},
        {"order.items.sku": "y"},
        {"carrier.name": "AA"},
        {"@headers.missing": "x"},
    ],
)
def test_a_field_that_is_missing_or_of_another_type_does_not_match(
    match: Mapping[str, Any],
) -> None:
    assert not matches(match)


@pytest.mark.parametrize("value", [None, 5, "text", [], [1], True])
def test_a_value_that_is_no_object_matches_no_field(value: Any) -> None:
    assert not matches({"carrier": "AA"}, value)
    assert not matches({"carrier": {"gt": 1}}, value)
    assert matches({"carrier": {"exists": False}}, value)


@pytest.mark.parametrize(
    ("match", "message"),
    [
        (["carrier"], "must map paths"),
        ([], "must map paths"),
        (False, "must map paths"),
        ("", "non-empty text"),
        ({"": 1}, "non-empty text"),
        ({"@nokey": 1}, "messages have no '@nokey'"),
        ({"a": {}}, "is empty"),
        ({"a": {"above": 1}}, "unknown operator 'above'"),
        ({"a": {"gt": None}}, "a number or a text"),
        ({"a": {"gt": True}}, "a number or a text"),
        ({"a": {"regex": "("}}, "operator 'regex'"),
        ({"a": {"in": "AA"}}, "a list is needed"),
        ({"a": {"exists": "yes"}}, "true or false"),
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused_with_the_reason(
    match: Any, message: str
) -> None:
    with pytest.raises(DagError, match=message):
        compile_match(match, ATTRIBUTES)


def test_extra_selects_fields_and_constants() -> None:
    build = compile_extra(
        {"who": "carrier", "sku": "order.items.0.sku", "gone": "missing", "from": "@key",
         "kind": {"const": [1]}},
        ATTRIBUTES,
    )  # fmt: skip
    assert build is not None
    assert build(MESSAGE, VALUE) == {
        "who": "AA", "sku": "x", "gone": None, "from": "order-7", "kind": [1],
    }  # fmt: skip


@pytest.mark.parametrize("extra", [["a"], {"a": {"path": "b"}}, {"a": 5}, {"a": "@nothing"}])
def test_a_template_that_cannot_be_meant_is_refused(extra: Any) -> None:
    with pytest.raises(DagError):
        compile_extra(extra, ATTRIBUTES)


def test_arguments_that_are_no_json_are_refused_and_equal_ones_become_equal() -> None:
    for argument in (math.nan, {1, 2}, object()):
        with pytest.raises(DagError, match="must be JSON"):
            canonical({"a": argument}, "match")
    assert repr(canonical({"b": (1, 2), "a": 1}, "match")) == repr({"a": 1, "b": [1, 2]})


scalars = (
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from((0.0, 1.0, 1.5, "", "1", "a"))
)
fields = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.just("b"), scalars))
conditions = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.fixed_dictionaries({"eq": fields}),
    st.fixed_dictionaries({"in": st.lists(fields, max_size=2)}),
    st.fixed_dictionaries(
        {"exists": st.booleans()}, optional={"eq": fields, "in": st.lists(scalars)}
    ),
    st.fixed_dictionaries({"ne": fields}, optional={"eq": fields}),
)


@given(
    match=st.dictionaries(st.sampled_from(("a", "a.b", "@key")), conditions, max_size=2),
    value=st.dictionaries(st.just("a"), fields),
    key=scalars,
)
def test_what_meets_a_condition_has_one_of_the_values_that_it_is_selected_by(
    match: dict[str, Any], value: dict[str, Any], key: Any
) -> None:
    match = canonical(match, "match")
    found = selected_by(match)
    message = {"key": key}
    test = compile_match(match, ATTRIBUTES)
    if found is not None and test is not None and test(message, value):
        path, values = found
        assert compile_path(path, ATTRIBUTES)(message, value) in values


@pytest.mark.parametrize(
    ("match", "found"),
    [
        (None, None),
        ({}, None),
        ({"carrier": "AA"}, ("carrier", {"AA"})),
        ({"delay": {"gt": 1}, "origin": ["JFK", "LGA"]}, ("origin", {"JFK", "LGA"})),
        ({"a": {"eq": 1, "lt": 5}}, ("a", {1})),
        ({"a": {"in": [1, 2]}}, ("a", {1, 2})),
        ({"a": {"eq": [1]}}, None),
        ({"a": {"eq": 1, "exists": False}}, None),
        ({"a": {"ne": 1}}, None),
    ],
)
def test_a_condition_on_equality_says_what_it_is_selected_by(match: Any, found: Any) -> None:
    assert selected_by(match) == found
