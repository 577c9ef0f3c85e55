"""Compares our runtime with Airflow's, alternately in one process: `python -m tests.benchmarks.airflow.compare`.

Run the command from the checkout's root, in an environment with Airflow (see docs/reference/airflow-triggers.md). Most
figures are processor time, because other processes on the machine hardly change it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from tests.benchmarks.airflow.sides import (
    ACK_TIMEOUT,
    SIDES,
    OpenSide,
    OurFilter,
    TheirFilter,
    Work,
)
from tests.benchmarks.report import Figures, Report, Row

_REPEATS: Final = 5
_REPEATS_OF_ONE: Final = 15
"""The rounds with one subscriber. There are more of them, because a round takes only a fifth of a second. Other work on
the machine disturbs short rounds most."""
_EVENTS: Final = {1: 60_000, 10: 10_000, 100: 2_000}


def _compared(what: Row, figures: dict[str, float], *, more_is_better: bool) -> Row:
    ours, theirs = figures["ours"], figures["Airflow"]
    over, under = (ours, theirs) if more_is_better else (theirs, ours)
    return {**what, **figures, "times better": over / under if under else float("inf")}


async def _rate(open_side: OpenSide, work: Work, *, is_fast: bool) -> float:
    Work.current = work
    async with open_side([0] * work.subscribers, confirms=True, is_fast=is_fast):
        gc.collect()
        began = time.process_time()
        await work.done.wait()
        return work.events / (time.process_time() - began)


def measure_speed(*, quick: bool) -> Figures:
    """Measure the raw events that all subscribers resolve per second of processor time.

    The runtimes take turns, and the best of five or fifteen rounds counts.
    """
    rows = []
    for mode, is_fast, fires in (
        ("ack, skip", False, lambda _: False),
        ("ack, yield, confirm", False, lambda _: True),
        ("fast path, skip", True, lambda _: False),
    ):
        for subscribers, events in _EVENTS.items():
            for lanes in (1,) if is_fast else (1, 64):
                best = dict.fromkeys(SIDES, 0.0)
                repeats = _REPEATS_OF_ONE if subscribers == 1 else _REPEATS
                for _ in range(1 if quick else repeats):
                    for side, open_side in SIDES.items():
                        work = Work(
                            events // 20 if quick else events,
                            lanes,
                            fires,
                            subscribers=subscribers,
                        )
                        rate = asyncio.run(_rate(open_side, work, is_fast=is_fast))
                        best[side] = max(best[side], rate)
                what = {"mode": mode, "subscribers": subscribers, "lanes": lanes}
                rows.append(_compared(what, best, more_is_better=True))
    return Figures(
        "airflow-speed",
        "Raw events per second of processor time",
        tuple(rows),
        "Aim: 3 times in ack mode.",
    )


async def _ms_per_wakeup(open_side: OpenSide, stuck: int, wakeups: int) -> float:
    work = Work(
        stuck + wakeups,
        max(stuck, 1),
        lambda number: number < stuck,
        one_by_one_from=stuck,
    )
    Work.current = work
    async with open_side([0], confirms=False):
        while work.advanced < 1:  # noqa: ASYNC110  (a turn is what is measured)
            await asyncio.sleep(0)
        began, before = time.process_time(), work.advanced
        while work.advanced < wakeups:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return (time.process_time() - began) * 1000 / (wakeups - before)


def measure_stuck_lanes(*, quick: bool) -> Figures:
    """Measure the time from sending an event, alone in its lane, to its advance: without other lanes, and with many.

    In each other lane, the first event waits for the store. The best round counts.
    """
    rows = []
    for stuck in (0, 100 if quick else 10_000):
        took = dict.fromkeys(SIDES, float("inf"))
        for _ in range(1 if quick else _REPEATS):
            for side, open_side in SIDES.items():
                ms = asyncio.run(_ms_per_wakeup(open_side, stuck, 300))
                took[side] = min(took[side], ms)
        rows.append(_compared({"stuck lanes": stuck}, took, more_is_better=False))
    return Figures(
        "airflow-stuck", "Stuck heads: ms from sending an event to its advance", tuple(rows)
    )


class _Stalls:
    """Measures the longest processor time that the loop spends before a timer of one millisecond fires."""

    def __init__(self) -> None:
        self._worst = 0.0

    async def watch(self) -> None:
        while True:
            began = time.process_time()
            await asyncio.sleep(0.001)
            self._worst = max(self._worst, time.process_time() - began)

    def take(self) -> float:
        """Return the longest stall since the last call, in ms."""
        worst, self._worst = self._worst * 1000, 0.0
        return worst


async def _stalls(open_side: OpenSide, events: int, cause: str) -> dict[str, float]:
    """Return the event loop's longest stalls in ms: while `events` events are outstanding, and while they are released.

    The events are outstanding because one of two subscribers is stuck at its first event. They are released when this
    subscriber leaves or times out.
    """
    work = Work(events, 8, stuck_subscribers=frozenset({1}), subscribers=2)
    Work.current = work
    stalls = _Stalls()
    async with open_side([0, 0], confirms=False) as side:
        await work.sent.wait()
        assert side.outstanding == events, side.outstanding
        gc.collect()
        watching = asyncio.ensure_future(stalls.watch())
        await asyncio.sleep(0.2)
        stalls.take()
        await asyncio.sleep(1.5)
        figures = {"idle": stalls.take()}
        if cause == "leaving":
            await side.leave(1)
        else:
            # Move the clock exactly to the timeout. If the clock jumped past the timeout, our
            # runtime would assume a blocked loop, and extend the timeout. Airflow fails no event at
            # exactly this time, so move the clock on afterwards.
            side.clock.now = ACK_TIMEOUT
            await asyncio.sleep(0.3)
            side.clock.now += 1
        async with asyncio.timeout(60):
            await work.done.wait()
        await asyncio.sleep(0.1)
        figures["stall"] = stalls.take()
        watching.cancel()
    return figures


def measure_stalls(*, quick: bool) -> Figures:
    rows = []
    events = 5_000 if quick else 100_000
    for cause in ("leaving", "timeout"):
        found = {
            side: asyncio.run(_stalls(open_side, events, cause))
            for side, open_side in SIDES.items()
        }
        what: Row = {"what": cause, "outstanding": events}
        for side, figures in found.items():
            what |= {f"{side}, idle": figures["idle"]}
        stalls = {side: figures["stall"] for side, figures in found.items()}
        rows.append(_compared(what, stalls, more_is_better=False))
    note = "the longest stall in ms, while nothing else runs. Aim: at most 5 more than idle."
    return Figures("airflow-stalls", "Stalls of the event loop", tuple(rows), note)


async def _traced(open_side: OpenSide, work: Work) -> int:
    """Return the bytes that the runtime allocated for the outstanding events."""
    Work.current = work
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with open_side([0] * work.subscribers, confirms=False) as side:
        await work.sent.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert side.outstanding == work.events, side.outstanding
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used


def measure_memory(*, quick: bool) -> Figures:
    """Measure each runtime's memory for an event that waits behind the lane's first event, which is never confirmed.

    The events themselves exist before the measurement, so they do not count.
    """
    count = 1_000 if quick else 10_000
    pairs = [(number, number) for number in range(count)]
    derived: dict[type[Any], Sequence[Any]] = {
        kind.event_type: [kind.event_type(number) for number in range(count)]
        for kind in (OurFilter, TheirFilter)
    }
    rows = []
    for open_side in SIDES.values():
        # The first round creates objects that a process needs only once. They must not count.
        asyncio.run(_traced(open_side, Work(1, pairs=pairs[:1], fires=lambda _: True)))
    for mode, fires in (
        ("filters skip", lambda number: number == 0),
        ("filters yield", lambda _: True),
    ):
        for subscribers in (1, 11):
            used = {}
            for side, open_side in SIDES.items():
                work = Work(count, 1, fires, subscribers=subscribers, pairs=pairs, derived=derived)
                used[side] = asyncio.run(_traced(open_side, work)) / count
            what = {"mode": mode, "subscribers": subscribers}
            rows.append(_compared(what, used, more_is_better=False))
    note = "Aims: 300 bytes if filters skip; 64 more for each subscriber's event if they yield."
    return Figures("airflow-memory", "Bytes per outstanding event (tracemalloc)", tuple(rows), note)


async def _watchers(side: str, groups: int, of: int, seconds: float) -> Row:
    work = Work.current = Work(0, pairs=((0, 0),))
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    began, began_busy = time.perf_counter(), time.process_time()
    keys = [group for group in range(groups) for _ in range(of)]
    async with SIDES[side](keys, confirms=False, is_real_time=True):
        while work.started < groups * of:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        started, started_busy = time.perf_counter() - began, time.process_time() - began_busy
        await asyncio.sleep(2)
        busy = sum(process.cpu_times()[:2])
        await asyncio.sleep(seconds)
        busy = sum(process.cpu_times()[:2]) - busy
        return {
            "side": side,
            "start s": started,
            "of it CPU s": started_busy,
            "memory MiB": (process.memory_info().rss - before) / 2**20,
            "idle CPU %": busy / seconds * 100,
        }


def measure_watchers(*, quick: bool) -> Figures:
    """Measure 1,000 groups of 10 watchers, in a new process for each runtime. Each producer sends one message, and then
    waits without using the processor.
    """
    rows = []
    for side in SIDES:
        command = [sys.executable, "-m", __spec__.name, "--watchers", side]
        done = subprocess.run(
            [*command, *(["--quick"] if quick else [])], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    note = "Aims: 10 s, 1 GB, 2 % of a core."
    return Figures("airflow-watchers", "10,000 watchers in 1,000 groups", tuple(rows), note)


_PARTS: Final[dict[str, Callable[..., Figures]]] = {
    "speed": measure_speed,
    "stuck": measure_stuck_lanes,
    "stalls": measure_stalls,
    "memory": measure_memory,
    "watchers": measure_watchers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(_PARTS)}; all by default")
    parser.add_argument(
        "--quick", action="store_true", help="a short run, only to see that it works"
    )
    parser.add_argument("--json", type=Path, help="append the figures to this file")
    parser.add_argument("--watchers", help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if given.watchers:
        groups, seconds = (10, 1.0) if given.quick else (1_000, 60.0)
        row = asyncio.run(_watchers(given.watchers, groups, 10, seconds))
        print(json.dumps(row))
        return
    report = Report(given.json)
    for part in given.parts or _PARTS:
        report.show(_PARTS[part](quick=given.quick))


if __name__ == "__main__":
    main()
