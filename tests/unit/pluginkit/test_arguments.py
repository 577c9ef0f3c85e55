"""The checks of triggers' arguments, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from triggerer.errors import DagError
from triggerer.pluginkit.arguments import (
    choice_argument,
    default_group,
    optional_text_argument,
    text_argument,
    texts_argument,
)


def test_names_are_the_same_list_in_whatever_order_they_are_written() -> None:
    assert texts_argument("a", "names", each="a name") == ["a"]
    assert texts_argument(("b", "a", "b"), "names", each="a name") == ["a", "b"]
    assert texts_argument(iter("ba"), "names", each="a name") == ["a", "b"]


@pytest.mark.parametrize("value", [None, 5, [], ""])
def test_no_names_are_refused(value: Any) -> None:
    with pytest.raises(DagError, match=r"^(names must be a name or a list|a name must be)"):
        texts_argument(value, "names", each="a name")


def test_one_that_is_no_name_is_refused() -> None:
    with pytest.raises(DagError, match="a name must be a non-empty text, not 5"):
        texts_argument(["a", 5], "names", each="a name")


def test_texts_and_choices_are_what_they_are_to_be() -> None:
    assert text_argument("a", "name") == "a"
    assert optional_text_argument(None, "name") is None
    assert choice_argument("all", "first", "all", "skip") == "all"
    with pytest.raises(DagError, match=r'first must be "all" or "skip", not 3'):
        choice_argument(3, "first", "all", "skip")
    with pytest.raises(DagError, match="name must be a non-empty text, not ''"):
        optional_text_argument("", "name")


def test_the_default_group_is_kafkas_of_old() -> None:
    """A change would make every watcher begin again."""
    assert default_group("kafka", ["orders"]) == "triggerer-d20f3d9580196b60"
    assert default_group("kafka", ["a", "b"]) != default_group("kafka", ["b", "a"])
