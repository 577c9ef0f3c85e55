"""Renders docs/notes/rules.md from the tables of `template.md`.

Each row gets one more cell: the name of a test that has the row's mark. This mark is `pytest.mark.rule` with the row's
cells, joined by a colon, for example `@pytest.mark.rule("6: growing delays")`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
PAGE: Final = TESTS.parent / "docs" / "notes" / "rules.md"
_TEMPLATE: Final = Path(__file__).parent / "template.md"

# The tests of each row, by the row's mark.
TestsByRule = Mapping[str, Collection[str]]


def tests_by_rule(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """Return, for each mark, the ids of the tests that carry the mark.

    If all tests of a module or a function carry the mark, one id stands for them: the module's or the function's.
    """
    members: dict[str, set[str]] = defaultdict(set)
    marked: dict[str, set[str]] = defaultdict(set)
    for item in items:
        scopes = _scopes(item.nodeid)
        for scope in scopes:
            members[scope].add(item.nodeid)
        for mark in item.iter_markers("rule"):
            for rule in mark.args:
                marked[rule].add(item.nodeid)
    return {
        rule: sorted({_largest_scope(test, tests, members) for test in tests})
        for rule, tests in marked.items()
    }


def _scopes(node_id: str) -> list[str]:
    """Return the ids of a test's module, of its function, and of the test itself."""
    module = node_id.partition("::")[0]
    return [module, node_id.partition("[")[0], node_id]


def _largest_scope(
    test: str, marked: Collection[str], members: Mapping[str, Collection[str]]
) -> str:
    return next(scope for scope in _scopes(test) if set(members[scope]) <= set(marked))


def rules() -> list[str]:
    """Return the mark of each row, in the order of the page."""
    return [_mark(line) for line in _template_lines() if _is_row(line)]


def marked_modules() -> list[Path]:
    """Return the test modules that contain a rule mark."""
    return [path for path in TESTS.rglob("test_*.py") if "mark.rule(" in path.read_text()]


def render(tests: TestsByRule) -> str:
    """Return the page's text."""
    return "\n".join(_page_lines(tests)) + "\n"


def _page_lines(tests: TestsByRule) -> Iterator[str]:
    for line in _template_lines():
        if not line.startswith("|"):
            yield line
        elif _is_row(line):
            yield f"{line} {_shown(tests.get(_mark(line), ()))} |"
        else:
            yield f"{line}---|" if line.startswith("|---") else f"{line} Test |"


def _shown(tests: Collection[str]) -> str:
    """Return the id of the first test and the number of further tests."""
    first = next((f"`{test}`" for test in tests), "")
    return first if len(tests) < 2 else f"{first} and {len(tests) - 1} more"


def _template_lines() -> list[str]:
    return _TEMPLATE.read_text().splitlines()


def _is_row(line: str) -> bool:
    # A table's header begins with the cell "Rule", "Scenario" or "Invariant", and no row begins with such a cell.
    return line.startswith("| ") and _cells(line)[0] not in {"Rule", "Scenario", "Invariant"}


def _cells(line: str) -> list[str]:
    return [cell.strip().removeprefix("… ") for cell in line.strip("|").split("|")]


def _mark(line: str) -> str:
    return ": ".join(_cells(line))
