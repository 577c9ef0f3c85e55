"""Messages of a catching-up filter until their events are durable."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from triggerer.domain.events import Fence, WatcherRef
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.processing.in_flight import LaneMessageInFlight, MessagesInFlight
from triggerer.streams.catchup.reading.lane_tail import LogMessage


@pytest.fixture
def messages() -> MessagesInFlight:
    return MessagesInFlight()


@pytest.fixture
def backlog(messages: MessagesInFlight) -> Backlog:
    fence = Fence("stream", "me", 1)
    since = datetime.now(UTC)
    return Backlog(
        WatcherRef(1, 0), 0, "0", since, fence, ["log", 0], ["log", 0], in_flight_by=messages
    )


def given(backlog: Backlog, number: int) -> LaneMessageInFlight:
    return LaneMessageInFlight(backlog, LogMessage(["log", number], number, number), str)


def derived_from(messages: MessagesInFlight, backlog: Backlog, number: int) -> LaneMessageInFlight:
    """Return a message that the filter has passed, with an event that is not durable yet."""
    in_flight = given(backlog, number)
    in_flight.derived = 1
    backlog.cursor = in_flight.message.end
    messages.add(in_flight)
    return in_flight


def test_a_message_without_events_moves_the_position_unless_an_earlier_one_is_in_flight(
    messages: MessagesInFlight, backlog: Backlog
) -> None:
    messages.pass_by(given(backlog, 0))
    assert backlog.position == backlog.cursor == ["log", 1]
    waits = derived_from(messages, backlog, 1)
    messages.pass_by(given(backlog, 2))
    assert (backlog.position, backlog.cursor) == (["log", 1], ["log", 3])
    later = derived_from(messages, backlog, 3)
    later.unresolved = 0
    assert not messages.move(backlog)
    assert backlog.position == ["log", 1]
    waits.unresolved = 0
    assert messages.move(backlog)
    assert backlog.position == backlog.cursor == ["log", 4]


def test_the_position_moves_up_to_the_next_message_that_is_waited_for(
    messages: MessagesInFlight, backlog: Backlog
) -> None:
    first = derived_from(messages, backlog, 0)
    messages.pass_by(given(backlog, 1))
    derived_from(messages, backlog, 2)
    first.unresolved = 0
    assert messages.move(backlog)
    assert (backlog.position, backlog.cursor) == (["log", 2], ["log", 3])


def test_the_open_message_is_dropped_with_the_earlier_ones(
    messages: MessagesInFlight, backlog: Backlog
) -> None:
    one, other = derived_from(messages, backlog, 0), derived_from(messages, backlog, 1)
    messages.open = opened = given(backlog, 2)
    messages.drop_from(other)
    assert [in_flight.is_dropped for in_flight in (one, other, opened)] == [False, True, True]


def test_messages_in_flight_of_a_lane_with_another_reader_are_ignored(
    messages: MessagesInFlight, backlog: Backlog
) -> None:
    one = derived_from(messages, backlog, 0)
    messages.open = opened = given(backlog, 1)
    messages.forget(backlog)
    assert one.is_dropped
    assert opened.is_dropped


def test_the_open_message_of_another_lane_still_counts(
    messages: MessagesInFlight, backlog: Backlog
) -> None:
    other = Backlog(backlog.watcher, 1, "1", backlog.since, backlog.fence, ["log", 0], ["log", 0])
    messages.open = opened = given(other, 0)
    messages.forget(backlog)
    messages.drop_from(given(backlog, 0))
    assert not opened.is_dropped
