"""`python -m tests.rules`: write docs/notes/rules.md anew from the tests' marks."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from tests.rules.page import PAGE, TESTS, render, tests_by_rule


class _Collector:
    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def main() -> int:
    """Collect all tests, the long ones too, and write the page."""
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
    PAGE.write_text(render(tests_by_rule(collector.items)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
