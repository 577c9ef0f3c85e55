"""What JSON text keeps of a value, and what is refused because the text would lose it."""

import math
import traceback
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.text.json_text import dump_json, load_json
from triggerer.errors import RowRefused

KEPT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner
        )
    ),
)


@given(KEPT)
def test_a_value_comes_back_with_its_types_and_its_numbers(value: Any) -> None:
    # `repr` tells 1 from 1.0 and from True, and -0.0 from 0.0.
    assert repr(load_json(dump_json(value, "it"))) == repr(value)


@dataclass
class Row:
    price: float


class Price(Enum):
    UNKNOWN = math.nan


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"price": math.nan}, "the extra has NaN at price, which JSON does not have"),
        ({"rows": [{"price": 1.0}, {"price": -math.inf}]}, r"-Infinity at rows\[1\].price,"),
        ({"none": None, "both": (1, math.inf)}, r"Infinity at both\[1\],"),
        (math.nan, "the extra has NaN, which"),
        ({"row": Row(math.nan)}, "NaN at row.price,"),
        ({"price": Price.UNKNOWN}, "NaN at price,"),
        ({"n": 2**64}, "the extra has an integer of more than 64 bits"),
        ({"n": -(2**63) - 1}, "an integer of more than 64 bits"),
        ({"a": "x\0y"}, r"the extra has a NUL character in the string 'x\\x00y'"),
        ({"a\0": 1}, "a NUL character"),
        ({"a": "\ud800"}, "the extra is not JSON: a string has half of a surrogate pair"),
        ({"a": b"x"}, "the extra is not JSON"),
        ({1: 2}, "the extra is not JSON"),
    ],
)
def test_a_value_that_the_text_would_lose_is_refused_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(RowRefused, match=said):
        dump_json(value, "the extra")


def test_a_null_and_text_that_looks_like_an_escape_are_kept() -> None:
    value = {"none": None, "text": "null \\u0000"}
    assert load_json(dump_json(value, "it")) == value


def test_the_traceback_of_a_refused_type_names_the_type_alone() -> None:
    with pytest.raises(RowRefused, match="not JSON serializable: set") as caught:
        dump_json({"n": {1, 2}}, "it")
    assert "NoneType" not in "".join(traceback.format_exception(caught.value))
