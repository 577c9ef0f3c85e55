"""A stream's owner has the history of the stream in memory: one value a minute, for an hour."""

from __future__ import annotations

from dataclasses import asdict, replace

from triggerer.domain.live_state import StreamHistory, StreamLive, stream_from_json
from triggerer.hosting.stream_history import MINUTES, StreamHistories

LIVE = StreamLive(
    stream_id="one",
    stream="memory",
    system="memory",
    epoch=1,
    consumed=0,
    advanced=0,
    rejected=0,
    failed=0,
    restarts=0,
    outstanding=0,
    outstanding_bytes=0,
    lag_messages=None,
    lag_seconds=None,
    behind=0,
    failing=0,
    triggers=1,
    paused=[],
    lane_count=0,
    lanes=[],
)


class Scene:
    def __init__(self) -> None:
        self.now_s = 6000.0
        self.histories = StreamHistories(lambda: self.now_s)

    def look(self, *, after_s: float, lag: int | None, consumed: int, epoch: int = 1) -> StreamLive:
        self.now_s += after_s
        live = replace(LIVE, lag_messages=lag, consumed=consumed, epoch=epoch)
        (found,) = self.histories.add([live])
        return found


def test_each_minute_has_its_highest_lag_and_the_messages_that_came_in_it() -> None:
    scene = Scene()
    scene.look(after_s=0, lag=None, consumed=0)
    scene.look(after_s=30, lag=7, consumed=5)
    scene.look(after_s=20, lag=2, consumed=9)
    seen = scene.look(after_s=20, lag=3, consumed=10)
    assert seen.history == StreamHistory(6060, (7, 3), (9, 1))
    # While the machine sleeps, nobody looks.
    seen = scene.look(after_s=180, lag=0, consumed=10)
    assert seen.history == StreamHistory(6240, (7, 3, None, None, 0), (9, 1, None, None, 0))


def test_a_stream_that_was_opened_again_counts_from_nothing() -> None:
    scene = Scene()
    scene.look(after_s=0, lag=0, consumed=100)
    seen = scene.look(after_s=60, lag=0, consumed=120, epoch=2)
    assert seen.history == StreamHistory(6060, (0, 0), (100, 120))
    seen = scene.look(after_s=60, lag=0, consumed=5, epoch=2)
    assert seen.history is not None
    assert seen.history.consumed == (100, 120, 5)


def test_an_hour_is_remembered_and_streams_that_are_gone_are_not() -> None:
    scene = Scene()
    for number in range(3 * MINUTES):
        seen = scene.look(after_s=60, lag=number, consumed=number)
    assert seen.history is not None
    assert seen.history.lag == tuple(range(2 * MINUTES, 3 * MINUTES))
    seen = scene.look(after_s=60 * 60 * 24, lag=1, consumed=number)
    assert seen.history is not None
    assert seen.history.lag == (None,) * (MINUTES - 1) + (1,)
    assert scene.histories.add([]) == []
    seen = scene.look(after_s=0, lag=1, consumed=0)
    assert seen.history is not None
    assert seen.history.lag == (1,)


def test_a_report_keeps_the_history() -> None:
    scene = Scene()
    scene.look(after_s=0, lag=1, consumed=1)
    seen = scene.look(after_s=60, lag=2, consumed=2)
    assert stream_from_json(asdict(seen)) == seen
    assert stream_from_json(asdict(LIVE)) == LIVE
