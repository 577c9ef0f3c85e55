"""schemathesis tries the OpenAPI description on a live service: no answer is a 5xx, and all answers are described."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.services.sample_service import SampleService, open_sample_service

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)
EVENTS = 200_000
WAITING = 20_000


@pytest.mark.parametrize(
    "examples",
    [pytest.param(1, marks=pytest.mark.soak), pytest.param(100, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(1_800)
def test_every_answer_of_a_live_service_is_described(tmp_path: Path, examples: int) -> None:
    # These routes stream, and their answers have no end.
    left_out = ("/api/v1/changes", r"/api/v1/dags/{dag_id}/dagRuns/{run_id}/logs")
    with open_sample_service(tmp_path, settings="rate_limit = 100000\n") as service:
        add_events(service)
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                "run",
                f"{service.address}/api/v1/openapi.json",
                "-H",
                f"Authorization: Bearer {service.token}",
                f"--max-examples={examples}",
                "--phases=examples,coverage,fuzzing",
                f"--checks={CHECKS}",
                *(f"--exclude-path={path}" for path in left_out),
                "--request-timeout=20",
                "--suppress-health-check=all",
                "--no-color",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=1_700,
            check=False,
        )
    # schemathesis prints the failures first, and then a long list of hints.
    failures = done.stdout.partition("= FAILURES =")[2] or done.stdout
    assert done.returncode == 0, failures[:5_000] + done.stderr[-2_000:]
    assert "request failed" not in (tmp_path / "service.log").read_text()


def add_events(service: SampleService) -> None:
    """Write many events of an asset straight into the store, and queue some of them for a paused DAG."""
    deadline = time.monotonic() + 60
    with service.client() as client:
        while client.get("/api/v1/dags/paused").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)  # the DAG files are read in another process
    with closing(sqlite3.connect(service.home / "triggerer.db", timeout=60)) as store, store:
        (asset,) = store.execute("SELECT id FROM asset WHERE name = 'odd ticks'").fetchone()
        (last,) = store.execute("SELECT coalesce(max(id), 0) FROM asset_event").fetchone()
        store.execute(
            "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
            "INSERT INTO asset_event (asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal) "
            "SELECT ?, json_object('n', n), strftime('%Y-%m-%d %H:%M:%f', 'now', -n || ' seconds') || '000', "
            "0, 'filled/' || n, 0 FROM n",
            (EVENTS, asset),
        )
        store.execute(
            "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id) "
            "SELECT 'paused', id, asset_id FROM asset_event WHERE id > ? AND asset_id = ? ORDER BY id LIMIT ?",
            (last, asset, WAITING),
        )
