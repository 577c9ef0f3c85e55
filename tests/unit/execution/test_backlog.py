"""How many runs are claimed ahead."""

from datetime import UTC, datetime

from triggerer.execution.backlog import Backlog, Pace
from triggerer.execution.protocol import RunOrder


def _order(pk: int, *, needs_spark: bool = False) -> RunOrder:
    now = datetime.now(UTC)
    run_id = f"manual__{pk}"
    return RunOrder(
        run_pk=pk,
        dag_id="d",
        run_id=run_id,
        run_type="manual",
        attempt=1,
        path="d.py",
        needs_spark=needs_spark,
        queued_at=now,
        run_after=now,
        logical_date=None,
        data_interval_start=None,
        data_interval_end=None,
        params={},
        log_path="/tmp/x",
    )


def test_nothing_is_claimed_ahead_of_runs_that_take_longer_than_a_claim() -> None:
    pace = Pace(workers=2)
    assert pace.ahead == 0
    pace.note(3.0)
    assert pace.ahead == 0


def test_runs_that_end_at_once_are_claimed_ahead_until_a_long_one_comes() -> None:
    pace = Pace(workers=1)
    for _ in range(10):
        pace.note(0.004)
    assert pace.ahead == 50
    pace.note(2.0)
    assert pace.ahead == 0


def test_room_is_what_free_workers_and_the_pace_allow_less_what_waits() -> None:
    backlog = Backlog()
    assert backlog.room(free=2, ahead=0, warming=False) == 2
    assert backlog.room(free=0, ahead=0, warming=False) == 0
    assert backlog.room(free=0, ahead=10, warming=False) == 10
    for pk in range(6):
        backlog.add(_order(pk))
    assert backlog.room(free=0, ahead=10, warming=False) == 0
    backlog.take(0)
    assert backlog.room(free=0, ahead=10, warming=False) == 5
    assert [order.run_pk for order in backlog.take_all()] == [1, 2, 3, 4, 5]
    assert len(backlog) == 0


def test_runs_that_wait_for_a_session_being_opened_do_not_keep_others_out() -> None:
    backlog = Backlog()
    backlog.add(_order(1, needs_spark=True))
    assert backlog.room(free=1, ahead=0, warming=False) == 0
    assert backlog.room(free=1, ahead=0, warming=True) == 1
    # But not without end.
    backlog.add(_order(2, needs_spark=True))
    assert backlog.room(free=1, ahead=0, warming=True) == 0
