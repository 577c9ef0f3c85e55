"""What was given to a filter that catches up, until all that derives from it is durable."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from triggerer.domain.events import Fence, WatcherRef
from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.processing.in_flight import TakenFromLane, TakenMessages
from triggerer.streams.catchup.reading.lane_tail import Message


@pytest.fixture
def messages() -> TakenMessages:
    return TakenMessages()


@pytest.fixture
def lag(messages: TakenMessages) -> Lag:
    fence = Fence("stream", "me", 1)
    since = datetime.now(UTC)
    return Lag(WatcherRef(1, 0), 0, "0", since, fence, ["log", 0], ["log", 0], taken_by=messages)


def given(lag: Lag, number: int) -> TakenFromLane:
    return TakenFromLane(lag, Message(["log", number], number, number), str)


def derived_from(messages: TakenMessages, lag: Lag, number: int) -> TakenFromLane:
    """A message that the filter has passed, and of which an event is not durable yet."""
    taken = given(lag, number)
    taken.derived = 1
    lag.read_to = taken.message.end
    messages.add(taken)
    return taken


def test_what_derives_nothing_moves_the_position_unless_something_before_it_is_waited_for(
    messages: TakenMessages, lag: Lag
) -> None:
    messages.pass_by(given(lag, 0))
    assert lag.position == lag.read_to == ["log", 1]
    waits = derived_from(messages, lag, 1)
    messages.pass_by(given(lag, 2))
    assert (lag.position, lag.read_to) == (["log", 1], ["log", 3])
    later = derived_from(messages, lag, 3)
    later.unresolved = 0
    assert not messages.move(lag)
    assert lag.position == ["log", 1]
    waits.unresolved = 0
    assert messages.move(lag)
    assert lag.position == lag.read_to == ["log", 4]


def test_the_position_moves_up_to_the_next_message_that_is_waited_for(
    messages: TakenMessages, lag: Lag
) -> None:
    first = derived_from(messages, lag, 0)
    messages.pass_by(given(lag, 1))
    derived_from(messages, lag, 2)
    first.unresolved = 0
    assert messages.move(lag)
    assert (lag.position, lag.read_to) == (["log", 2], ["log", 3])


def test_what_is_open_is_dropped_with_what_lies_before_it(
    messages: TakenMessages, lag: Lag
) -> None:
    one, other = derived_from(messages, lag, 0), derived_from(messages, lag, 1)
    messages.open = opened = given(lag, 2)
    messages.drop_from(other)
    assert [taken.is_dropped for taken in (one, other, opened)] == [False, True, True]


def test_what_was_taken_of_a_lane_that_another_reads_counts_no_more(
    messages: TakenMessages, lag: Lag
) -> None:
    one = derived_from(messages, lag, 0)
    messages.open = opened = given(lag, 1)
    messages.forget(lag)
    assert one.is_dropped
    assert opened.is_dropped


def test_what_is_open_of_another_lane_still_counts(messages: TakenMessages, lag: Lag) -> None:
    other = Lag(lag.watcher, 1, "1", lag.since, lag.fence, ["log", 0], ["log", 0])
    messages.open = opened = given(other, 0)
    messages.forget(lag)
    messages.drop_from(given(lag, 0))
    assert not opened.is_dropped
