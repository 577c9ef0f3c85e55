"""The pictures of docs/timetables.md are what the timetables answer."""

from tests.unit.domain.timetables.pictures import PAGE, PICTURES, drawn, names_on
from triggerer.domain.timetables import serialization


def test_each_picture_is_as_it_is_drawn_now() -> None:
    page = PAGE.read_text()
    assert drawn(page) == page, "python -m tests.unit.domain.timetables.pictures"
    assert sorted(names_on(page)) == sorted(PICTURES)


def test_the_page_names_every_timetable() -> None:
    page = PAGE.read_text()
    assert [name for name in serialization.BUILT_IN if name not in page] == []
