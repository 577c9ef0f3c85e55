"""`python -m tests.rules`: write docs/notes/rules.md from the tests' marks, or show the tests of some rows."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys

import pytest

from tests.rules.page import PAGE, TESTS, render, rules, tests_by_rule


class _Collector:
    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def main() -> int:
    """Collect all tests, the long ones too, and write the page or show its rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.rules", description=main.__doc__)
    parser.add_argument(
        "--show", metavar="TEXT", help="only show the tests of the rows that begin with this text"
    )
    shown = parser.parse_args().show
    collector = _Collector()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(
            ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", str(TESTS)],
            plugins=[collector],
        )
    if status != pytest.ExitCode.OK:
        sys.stderr.write(said.getvalue())
        return int(status)
    tests = tests_by_rule(collector.items)
    if shown is None:
        PAGE.write_text(render(tests))
        return 0
    found = [rule for rule in rules() if rule.startswith(shown)]
    for rule in found:
        print(rule, *tests.get(rule, ["no test"]), sep="\n    ")
    if not found:
        sys.stderr.write(f"no row begins with {shown!r}\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
