"""A stream's mark tells whether the broker's positions are newer than the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.events import Fence
from triggerer.domain.watchers.stream_marks import StoredMark
from triggerer.errors import StoreRestored
from triggerer.streams.store_marks import KnownMark, StoreMarks

AT = datetime(2026, 11, 29, 2, 0, 1, 500_000, tzinfo=UTC)
MINE = Fence("stream", "me", 3)


def mark(seconds: float, incarnation: str = "a") -> StoredMark:
    return StoredMark(incarnation, AT + timedelta(seconds=seconds))


@given(st.integers(0, 10**17))
def test_a_mark_is_read_back_as_it_was_stored(microseconds: int) -> None:
    stored = StoredMark("0123456789abcdef", AT + timedelta(microseconds=microseconds))
    assert StoredMark.parse(stored.text) == stored
    assert len(stored.text) <= 60


@pytest.mark.parametrize("text", ["", "by hand", "a/b", "a/99999999999999999999999"])
def test_a_text_of_another_program_is_no_mark(text: str) -> None:
    assert StoredMark.parse(text) is None


@pytest.mark.parametrize(
    "marks",
    [
        [],
        [None, "by hand"],
        [mark(0).text, mark(-9).text],
        # Another database, or this one before `db restored`.
        [mark(9, "b").text],
        [StoredMark("a", None).text],
    ],
)
def test_positions_that_are_not_newer_are_in_order(marks: list[str | None]) -> None:
    known = KnownMark(mark(0))
    known.check(marks)
    assert known.is_in_order


@pytest.mark.parametrize("stored", [mark(0), StoredMark("a", None)])
def test_one_newer_position_is_refused_and_the_mark_is_not_renewed(stored: StoredMark) -> None:
    known = KnownMark(stored)
    known.check([])
    with pytest.raises(StoreRestored):
        known.check([None, mark(-9).text, mark(0.000001).text])
    assert not known.is_in_order


def test_the_error_has_both_times_and_the_command_as_it_has_to_be_typed() -> None:
    with pytest.raises(StoreRestored) as caught:
        KnownMark(mark(0)).check([mark(7 * 3600).text, mark(3600).text])
    assert "knows nothing after 2026-11-29 02:00:01Z" in caught.value.message
    assert "is from 2026-11-29 09:00:01Z" in caught.value.message
    assert "`triggerer db restored --backup-time 2026-11-29T02:00:01Z`" in str(caught.value.hint)


def test_a_lease_keeps_its_mark_object_and_a_new_lease_is_checked_again() -> None:
    marks = StoreMarks()
    marks.adopt({MINE: mark(0)})
    known = marks.find(MINE)
    assert known is not None
    assert marks.in_order() == []
    known.check([])
    assert marks.in_order() == [MINE]
    marks.adopt({MINE: mark(4)})
    assert marks.find(MINE) is known
    assert known.text == mark(4).text
    later = MINE._replace(epoch=4)
    marks.adopt({later: mark(8)})
    assert marks.find(MINE) is None
    assert marks.in_order() == []
    assert marks.find(None) is None
