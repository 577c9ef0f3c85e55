"""Every rule has its test: docs/rules.md names no test that pytest does not find."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rules.md"
RULES = 17

_TEST = re.compile(r"`(tests/[^`]+)`")


def rows() -> list[list[str]]:
    """The cells of each line of the page's tables, headers apart."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if not row[-1].startswith(("Test", "---"))]


def test_every_rule_phrase_and_scenario_names_a_test() -> None:
    assert [row[:-1] for row in rows() if not _TEST.search(row[-1])] == []
    numbers = [int(row[0]) for row in rows() if row[0].isdecimal()]
    assert sorted(set(numbers)) == list(range(1, RULES + 1))
    assert numbers == sorted(numbers)


def test_every_test_that_the_page_names_is_collected() -> None:
    named = sorted({test for row in rows() for test in _TEST.findall(row[-1])})
    assert len(named) > RULES
    # In a process of its own: the session that runs has been collected, with arguments of its own.
    asked = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    missing = re.findall(
        r"^ERROR: not found: \S*?(tests/.+)$", asked.stdout + asked.stderr, re.MULTILINE
    )
    assert missing == []
    assert asked.returncode == 0, asked.stdout[-2000:] + asked.stderr[-2000:]
