"""Conditions in CEL."""

import builtins
from typing import Any

import pytest

from triggerer.errors import DagError
from triggerer.pluginkit.matching import compile_match, selected_by

ATTRIBUTES = {"key": lambda message: message["key"], "headers": lambda message: message["headers"]}
MESSAGE = {"key": "order-7", "headers": {"source": "shop"}}


def holds(match: Any, value: Any = None) -> bool:
    test = compile_match(match, ATTRIBUTES)
    assert test is not None
    return test(MESSAGE, {"n": 3, "limit": 2, "items": [{"sku": "x"}]} if value is None else value)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("value.n > value.limit", True),
        ("value.n < value.limit || value.items.exists(i, i.sku == 'x')", True),
        ("key.startsWith('order-') && headers.source == 'shop'", True),
        ("value.n * 2 == 7", False),
        ("value.nothing == 1", False),
        ("has(value.nothing) || value.n == 3", True),
        ("value.n == 'three'", False),
        ("value.n", False),
    ],
)
def test_an_expression_sees_the_value_and_the_messages_attributes(
    expression: str, expected: bool
) -> None:
    assert holds(expression) is expected
    assert holds({"@cel": expression}) is expected


def test_what_it_cannot_be_asked_of_does_not_hold_and_is_no_error() -> None:
    for value in ("text", [1], 3, 2**70, {"n": "2", "limit": 1}, {"n": None, "limit": 1}):
        assert not holds("value.n > value.limit", value)


def test_it_goes_with_conditions_of_which_an_equality_is_still_looked_up() -> None:
    match = {"n": 3, "@cel": "value.limit > 1"}
    assert holds(match)
    assert not holds({**match, "n": 4})
    assert not holds({**match, "@cel": "value.limit > 2"})
    assert selected_by(match) == ("n", frozenset({3}))
    assert selected_by("value.n == 3") is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("value.n >", "cannot be read"),
        ("topic == 'x'", "uses 'topic' .*known: headers, key, value"),
        (" ", "non-empty text"),
        (3, "non-empty text"),
    ],
)
def test_a_mistake_is_found_when_the_file_is_parsed(expression: Any, message: str) -> None:
    with pytest.raises(DagError, match=message):
        compile_match({"@cel": expression}, ATTRIBUTES)


def test_without_the_package_the_author_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ordinary = builtins.__import__

    def without_cel(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "cel":
            raise ImportError("no cel")
        return ordinary(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_cel)
    with pytest.raises(DagError, match=r"triggerer\[cel\]"):
        compile_match("value.n > 1", ATTRIBUTES)
