"""Pages fit a screen, and prose does not become harder to read: `prose_ceilings.toml` has the bounds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.prose import FOLDERS, ROOT, cells, count, outside_code, sentences

WIDEST_LINE: Final = 120
LONGEST_CELL: Final = 200
CEILINGS: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("prose_ceilings.toml").read_text()
)
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda page: page.as_posix()
)


def too_wide(text: str) -> Iterator[str]:
    """The lines of a page that break a rule, with their numbers."""
    for number, row in enumerate(outside_code(text), 1):
        if not row.startswith("|"):
            if len(row) > WIDEST_LINE:
                yield f"line {number} has {len(row)} characters: {row[:40]}…"
            continue
        for cell in cells(row):
            if len(cell) > LONGEST_CELL:
                yield f"line {number} has a cell of {len(cell)} characters: {cell[:40]}…"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_and_cells_of_a_page_fit_a_screen(page: Path) -> None:
    found = list(too_wide(page.read_text()))
    if page.relative_to(ROOT).as_posix() in CEILINGS["wide"]["pages"]:
        assert found, "it fits now: remove it from prose_ceilings.toml"
    else:
        assert found == []


def test_the_list_of_wide_pages_names_pages_that_exist() -> None:
    known = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert set(CEILINGS["wide"]["pages"]) - known == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rate_of_sentences_that_make_a_reader_go_back_does_not_rise(folder: str) -> None:
    counted = count([ROOT / folder])
    ceiling = CEILINGS["rates"][folder]
    assert counted.per_thousand <= ceiling, (
        f"{counted.suspects} of {counted.sentences} sentences are suspect, {counted.per_thousand:.1f}"
        f" in 1,000, and {ceiling} is the ceiling: python -m tests.prose {folder}"
    )


def test_habits_are_found_in_docstrings_comments_and_pages(tmp_path: Path) -> None:
    code = tmp_path / "a.py"
    code.write_text(
        '"""Those that wait are told.\n\nNothing here is suspect at all."""\n\n'
        "# What is behind it counts,\n# and is so often read anew.\nX = 1  # no paragraph\n"
    )
    page = tmp_path / "b.md"
    page.write_text(
        "# Of a heading nothing is said\n\n- Of two events the newer one\n  waits here.\n"
        "- This item stands alone here.\n\n| a | The same for a queue of any kind |\n"
        "```\nOf all code nothing counts.\n```\n"
    )
    found = [
        (sentence.line, sentence.text) for sentence in sentences([tmp_path]) if sentence.is_suspect
    ]
    assert found == [
        (1, "Those that wait are told."),
        (5, "What is behind it counts, and is so often read anew."),
        (3, "Of two events the newer one waits here."),
        (7, "The same for a queue of any kind"),
    ]
    assert count([tmp_path]) == (6, 4)


def test_wide_lines_and_long_cells_are_found() -> None:
    wide, long = "w" * (WIDEST_LINE + 1), "c" * (LONGEST_CELL + 1)
    text = f"{wide}\n{wide[1:]}\n| a | {long} |\n| {long[1:]} |\n```\n{wide}\n```\n"
    assert [line.partition(" characters")[0] for line in too_wide(text)] == [
        "line 1 has 121",
        "line 3 has a cell of 201",
    ]
