"""The time from a queued run to Spark's first row, with a warm session and one run at a time.

The task makes a DataFrame of the run's triggering events with `spark.createDataFrame`, and takes its first row.
`stamped_service` records when the run was queued, and the task records the later instants (CLOCK_MONOTONIC).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
import orjson

from tests.benchmarks.dags import that_shows_a_row
from tests.benchmarks.load import publish_paced
from tests.benchmarks.report import Figures, Row, percentile
from tests.benchmarks.scene import Scene, Store
from tests.benchmarks.service import Service

_NOTE: Final = "seconds from the commit that queued the run; aim: p50 < 1.5. `very first run` is a warm-up run."
_WARM_UP_RUNS: Final = 3


def measure(scene: Scene) -> Figures:
    rows = [row for store in scene.stores for row in _measure(scene, store)]
    title = "First row: queued run → first row of a Spark DataFrame, one run at a time"
    return Figures("first-row", title, tuple(rows), _NOTE)


def _measure(scene: Scene, store: Store) -> Iterable[Row]:
    topic = scene.new_topic()
    noted = scene.new_folder("first-row") / "rows.jsonl"
    dag_file = that_shows_a_row(topic, f"{topic}-group", noted)
    runs = 2 if scene.quick else 20
    with scene.service(dag_file, store) as service:
        service.start("events")
        service.wait_for_watchers(1)
        for number in range(1, _WARM_UP_RUNS + runs + 1):
            anyio.run(
                partial(
                    publish_paced, scene.kafka.bootstrap_servers, topic, rate=1, seconds=1,
                    first=number,
                )
            )  # fmt: skip
            _wait_for_runs(service, number)
        run_pks = dict(service.records.rows("SELECT run_id, id FROM dag_run"))
        queued = service.stop()["queued"]
    found = [orjson.loads(line) for line in noted.read_text().splitlines()]
    yield _row(store, found[_WARM_UP_RUNS:], run_pks, queued, found[0])


def _wait_for_runs(service: Service, count: int) -> None:
    service.wait_until(
        lambda: (
            service.ask("SELECT count(*) FROM dag_run WHERE state IN ('success', 'failed')")
            == count
        ),
        within_s=120,
        what=f"{count} runs",
    )
    if service.ask("SELECT count(*) FROM dag_run WHERE state = 'failed'"):
        error = service.ask("SELECT error FROM dag_run WHERE state = 'failed'")
        raise RuntimeError(f"a run failed: {error}\n{service.log_tail()}")


def _row(
    store: Store,
    found: Sequence[Sequence[Any]],
    run_pks: Mapping[str, int],
    queued: Mapping[int, int],
    coldest: Sequence[Any],
) -> Row:
    def since_queued(line: Sequence[Any], place: int) -> float:
        return float(line[place] - queued[run_pks[line[0]]]) / 1e9

    began = sorted(since_queued(line, 1) for line in found)
    read = sorted(since_queued(line, 2) for line in found)
    rows = sorted(since_queued(line, 3) for line in found)
    return {
        "store": store,
        "runs": len(found),
        "first row p50": percentile(rows, 50),
        "p95": percentile(rows, 95),
        "worst": rows[-1],
        "task begins p50": percentile(began, 50),
        "its events read p50": percentile(read, 50),
        "very first run": since_queued(coldest, 3),
    }
