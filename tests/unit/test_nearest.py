from __future__ import annotations

from triggerer.nearest import ending, hint, nearest

KNOWN = ["orders", "returns", "schedule"]


def test_the_most_similar_name_is_found_whatever_its_case() -> None:
    assert nearest("order", KNOWN) == "orders"
    assert nearest("RETURN", KNOWN) == "returns"


def test_nothing_is_suggested_that_is_not_similar_unless_anything_will_do() -> None:
    assert nearest("kafka", KNOWN) is None
    assert ending("kafka", KNOWN) == ""
    assert ending("shape", KNOWN, cutoff=0) == "; did you mean 'schedule'?"


def test_a_hint_suggests_a_name_or_lists_a_few() -> None:
    assert hint("shedule", KNOWN) == "did you mean 'schedule'?"
    assert hint("kafka", KNOWN) == "known: orders, returns, schedule"
    assert hint("kafka", []) is None
    assert hint("kafka", [f"a{number}" for number in range(21)]) is None
