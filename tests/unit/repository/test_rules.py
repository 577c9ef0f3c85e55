"""Every rule has its tests: docs/notes/rules.md is what the tests' marks say."""

from __future__ import annotations

import pytest

from tests.conftest import COLLECTED, TESTS_BY_RULE
from tests.rules.page import PAGE, TestsByRule, marked_modules, render, rules

NUMBERED_RULES = 18


@pytest.fixture
def tests(request: pytest.FixtureRequest) -> TestsByRule:
    """Return the tests of each rule; skips unless the session has collected all modules with marks."""
    collected = request.config.stash[COLLECTED]
    if absent := [path.name for path in marked_modules() if path not in collected]:
        pytest.skip(
            f"not collected in this run: {len(absent)} of the marked modules, {absent[0]} …"
        )
    return request.config.stash[TESTS_BY_RULE]


@pytest.mark.full
def test_every_rule_phrase_and_scenario_has_a_test(tests: TestsByRule) -> None:
    assert [rule for rule in rules() if rule not in tests] == []


@pytest.mark.full
def test_every_mark_is_a_row_of_the_page(tests: TestsByRule) -> None:
    assert sorted(set(tests) - set(rules())) == []


@pytest.mark.full
def test_the_page_is_what_the_marks_say(tests: TestsByRule) -> None:
    assert PAGE.read_text() == render(tests), "write it again: python -m tests.rules"


def test_the_contracts_rules_are_there_in_their_order() -> None:
    numbers = [int(number) for rule in rules() if (number := rule.partition(":")[0]).isdecimal()]
    assert sorted(set(numbers)) == list(range(1, NUMBERED_RULES + 1))
    assert numbers == sorted(numbers)
