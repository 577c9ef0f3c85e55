"""The pictures of docs/reference/timetables.md and partitions.md are what the timetables answer."""

from pathlib import Path

import pytest

from tests.unit.domain.timetables.pictures import PAGE, PAGES, PICTURES, drawn, names_on
from triggerer.domain.timetables import serialization


@pytest.mark.parametrize("path", PAGES, ids=lambda one: one.name)
def test_each_picture_is_as_it_is_drawn_now(path: Path) -> None:
    page = path.read_text()
    assert drawn(page) == page, "python -m tests.unit.domain.timetables.pictures"


def test_each_picture_is_on_a_page() -> None:
    names = [name for path in PAGES for name in names_on(path.read_text())]
    assert sorted(names) == sorted(PICTURES)


def test_the_page_names_every_timetable() -> None:
    page = PAGE.read_text()
    assert [name for name in serialization.BUILT_IN if name not in page] == []
