"""The time until a run's first task began."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from tests.run_orders import order
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.slots.task_timers import TaskTimers
from triggerer.observability.metrics import table
from triggerer.worker.protocol import TaskStart

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_counted() -> Iterator[None]:
    # Other tests of this process execute runs, which are counted too.
    table.RUN_QUEUE.clear()
    yield
    table.RUN_QUEUE.clear()


async def test_a_run_waits_until_its_first_task_began() -> None:
    for run_pk, attempt, begins in ((1, 1, (3.0, 9.0)), (2, 1, (4.0,)), (3, 2, (100.0,))):
        run = order(run_pk, attempt, queued_at=BEGIN)
        timers = TaskTimers(cast("ResultWriter", None), run, timedelta(), print)
        for seconds in begins:
            timers.follow(TaskStart("work", 1, BEGIN + timedelta(seconds=seconds), None))
        timers.stop()
    ((_, waits),) = table.RUN_QUEUE.series()
    counts, total = waits.read()
    assert (counts[-1][1], total) == (2, 7.0)
