"""How many runs are claimed ahead, and for how long."""

import math

from tests.run_orders import order
from triggerer.executor.claimed_queue import STALE_SECONDS, ClaimedQueue, PrefetchLimit


def test_nothing_is_claimed_ahead_of_runs_that_take_longer_than_a_claim() -> None:
    prefetch = PrefetchLimit(workers=2)
    assert prefetch.runs == 0
    prefetch.record(3.0)
    assert prefetch.runs == 0


def test_runs_that_end_at_once_are_claimed_ahead_until_a_long_one_comes() -> None:
    prefetch = PrefetchLimit(workers=1)
    for _ in range(10):
        prefetch.record(0.004)
    assert prefetch.runs == 50
    prefetch.record(2.0)
    assert prefetch.runs == 0


def test_room_is_what_free_workers_and_the_pace_allow_less_what_waits() -> None:
    claimed_queue = ClaimedQueue()
    assert claimed_queue.room(free=2, ahead=0, warming=False) == 2
    assert claimed_queue.room(free=0, ahead=0, warming=False) == 0
    assert claimed_queue.room(free=0, ahead=10, warming=False) == 10
    for pk in range(6):
        claimed_queue.add(order(pk))
    assert claimed_queue.room(free=0, ahead=10, warming=False) == 0
    claimed_queue.take(0)
    assert claimed_queue.room(free=0, ahead=10, warming=False) == 5
    assert [one.run_pk for one in claimed_queue.take_all()] == [1, 2, 3, 4, 5]
    assert len(claimed_queue) == 0


def test_runs_that_wait_for_a_session_being_opened_do_not_keep_others_out() -> None:
    claimed_queue = ClaimedQueue()
    claimed_queue.add(order(1, needs_spark=True))
    assert claimed_queue.room(free=1, ahead=0, warming=False) == 0
    assert claimed_queue.room(free=1, ahead=0, warming=True) == 1
    # The second waiting run takes that room.
    claimed_queue.add(order(2, needs_spark=True))
    assert claimed_queue.room(free=1, ahead=0, warming=True) == 0


def test_a_run_is_stale_after_its_own_wait_whatever_was_claimed_since() -> None:
    now = 0.0
    claimed_queue = ClaimedQueue(lambda: now)
    assert claimed_queue.stale_in_s == math.inf
    claimed_queue.add(order(1))
    now = 1.5
    claimed_queue.add(order(2))
    assert claimed_queue.stale_in_s == STALE_SECONDS - 1.5
    now = 3.0
    assert claimed_queue.stale_in_s == 0.0
    claimed_queue.take(1)
    assert claimed_queue.stale_in_s == STALE_SECONDS - 1.5
    claimed_queue.wait_again()
    assert claimed_queue.stale_in_s == STALE_SECONDS
    claimed_queue.take_all()
    assert claimed_queue.stale_in_s == math.inf
