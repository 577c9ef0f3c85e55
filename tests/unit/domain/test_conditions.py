from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import (
    AssetAll,
    AssetAny,
    Condition,
    Leaf,
    aliases_of,
    assets_of,
    condition_from_json,
    condition_to_json,
    is_satisfied,
    leaves_of,
    written_leaves_of,
)
from triggerer.errors import DagError

A, B, C = Asset("a"), Asset("b"), Asset("s3://bucket/c", name="c")
X = AssetAlias("x")

leaves = st.sampled_from([A, B, C, X])
conditions: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda kind, operands: kind(*operands),
        st.sampled_from([AssetAll, AssetAny]),
        st.lists(inner, min_size=1, max_size=4),
    ),
    max_leaves=12,
)


def test_operators_of_one_kind_make_one_flat_group() -> None:
    assert (A & B & C).objects == (A, B, C)
    assert AssetAny(A, B, C) == A | (B | C)
    assert AssetAll(A, B) == A & (B & A)


def test_an_asset_that_is_written_twice_is_one_operand_and_both_are_written_leaves() -> None:
    first, second = Asset("a"), Asset("a", extra={"n": 2})
    both = (first & Asset("b")) & second
    assert both.objects == (first, Asset("b"))
    assert [id(leaf) for leaf in written_leaves_of(both) if leaf == first] == [
        id(first),
        id(second),
    ]
    nested = (first | Asset("b")) & (second | Asset("b"))
    assert len(nested.objects) == 1
    assert id(second) in map(id, written_leaves_of(nested))
    assert both == first & Asset("b")


def test_operators_of_two_kinds_nest() -> None:
    assert AssetAll(A, AssetAny(B, X)) == A & (B | X)
    assert AssetAny(A, AssetAll(B, C)) == A | B & C


@pytest.mark.parametrize("kind", [AssetAll, AssetAny])
def test_a_group_without_assets_is_refused(kind: type[AssetAll | AssetAny]) -> None:
    with pytest.raises(DagError, match="has no assets"):
        kind()


def test_only_assets_can_be_combined() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        A & "b"
    with pytest.raises(DagError, match="not 'b'"):
        AssetAll(A, "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("condition", "present", "expected"),
    [
        (A, {A}, True),
        (A & B, {A}, False),
        (A & B, {A, B}, True),
        (A | B, {B}, True),
        (A | B, set(), False),
        (A & (B | X), {A, X}, True),
        (A & (B | X), {B, X}, False),
        ((A & B) | C, {C}, True),
    ],
)
def test_an_expression_is_true_when_its_assets_have_events(
    condition: Condition, present: set[Leaf], expected: bool
) -> None:
    assert is_satisfied(condition, present.__contains__) is expected


def test_assets_and_aliases_are_listed_once_each_and_in_order() -> None:
    condition = (B & A) | (B & X & C)
    assert assets_of(condition) == (B, A, C)
    assert aliases_of(condition) == (X,)


def test_the_stored_form_is_what_the_store_documents() -> None:
    assert condition_to_json(C & (A | X)) == {
        "all": [
            {"asset": {"name": "c", "uri": "s3://bucket/c"}},
            {"any": [{"asset": {"name": "a", "uri": "a"}}, {"alias": "x"}]},
        ]
    }


@pytest.mark.parametrize(
    "stored",
    [None, {}, {"all": []}, {"asset": "a"}, {"alias": "x", "any": []}, {"any": [{"no": 1}]}],
)
def test_a_stored_form_that_nobody_wrote_is_refused(stored: Any) -> None:
    with pytest.raises(DagError, match="not an asset expression"):
        condition_from_json(stored)


@given(conditions)
def test_the_stored_form_says_the_same(condition: Condition) -> None:
    again = condition_from_json(json.loads(json.dumps(condition_to_json(condition))))
    assert again == condition


@given(conditions, st.sets(leaves), leaves)
def test_one_more_event_never_makes_a_true_expression_false(
    condition: Condition, present: set[Leaf], more: Leaf
) -> None:
    if is_satisfied(condition, present.__contains__):
        assert is_satisfied(condition, (present | {more}).__contains__)


@given(conditions)
def test_events_for_everything_satisfy_every_expression_and_none_satisfy_none(
    condition: Condition,
) -> None:
    assert is_satisfied(condition, set(leaves_of(condition)).__contains__)
    assert not is_satisfied(condition, lambda _: False)
