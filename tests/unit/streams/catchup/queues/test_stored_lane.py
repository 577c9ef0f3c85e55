"""The bookkeeping of one watcher's stored messages in one lane of a queue."""

from __future__ import annotations

from triggerer.domain.watchers.parked import StoredMessage
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane


def row(id_: int) -> StoredMessage:
    return StoredMessage(id_, "0", f"key {id_}", b"", 0)


def given(kept: StoredLane) -> int | None:
    """Hand a message to the filter from memory, and begin to store it."""
    kept.handed_to = 1
    kept.in_flight_keys.add("key 1")
    return kept.begin_storing(0, "key 1")


def test_a_row_that_comes_after_its_message_was_dealt_with_is_needless() -> None:
    """The filter passes the message before the message's row is stored.

    In the simulation's seed 473, nothing read or deleted the row.
    """
    kept = StoredLane(0)
    given_in = given(kept)
    kept.mark_passed("key 1")
    assert kept.passed == [], "the row is not there to go"
    assert kept.end_storing("key 1", given_in, is_stored=True)
    assert not kept.has_unread


def test_a_row_that_was_refused_is_no_row() -> None:
    kept = StoredLane(0)
    given_in = given(kept)
    kept.mark_passed("key 1")
    assert not kept.end_storing("key 1", given_in, is_stored=False)


def test_a_stored_message_is_read_again_from_its_row() -> None:
    kept = StoredLane(0)
    given_in = given(kept)
    kept.in_flight_keys.discard("key 1")
    kept.read_again()
    assert not kept.end_storing("key 1", given_in, is_stored=True)
    assert kept.given_before_stored == {}
    assert kept.has_unread
    assert not kept.unread_writes


def test_a_message_in_flight_when_a_later_one_fails_is_still_known_by_its_key() -> None:
    """In the simulation's seed 3738, the message's row stayed, and no filter received the message."""
    kept = StoredLane(0)
    given_in = given(kept)
    kept.read_again()
    assert kept.given_before_stored == {0: "key 1"}
    kept.mark_passed(kept.given_before_stored.pop(0))
    assert kept.end_storing("key 1", given_in, is_stored=True), "the row goes once it is there"
    assert not kept.unread_writes


def test_a_row_that_was_there_goes_with_the_next_order() -> None:
    kept = StoredLane(0)
    assert not kept.end_storing("key 1", given(kept), is_stored=True)
    kept.mark_passed("key 1")
    assert kept.passed == ["key 1"]


def test_rows_that_are_gone_are_not_read_from_memory() -> None:
    """The first message of the page is parked after the page was read (the simulation's seed 655)."""
    kept = StoredLane(3)
    kept.page.extend(map(row, (1, 2, 3)))
    kept.in_flight_keys |= {"key 1", "key 2"}
    kept.mark_gone(("key 1",))
    assert [one.id for one in kept.page] == [2, 3]
    assert kept.in_flight_keys == {"key 2"}
    assert kept.unread == 2


def test_a_row_of_what_was_given_before_it_was_kept_is_not_counted_as_read() -> None:
    """In the simulation's seed 1465, a message that was stored later was not read."""
    kept = StoredLane(0)
    kept.end_storing("key 1", given(kept), is_stored=True)
    assert kept.unread == 0
    kept.end_storing("key 2", kept.begin_storing(1, "key 2"), is_stored=True)
    kept.page.extend(map(row, (1, 2)))
    kept.end_storing("key 3", kept.begin_storing(2, "key 3"), is_stored=True)
    kept.mark_given(2)
    assert kept.unread == 1
    kept.page.append(row(3))
    kept.mark_gone(("key 3",))
    assert kept.unread == 0
