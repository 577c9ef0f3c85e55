"""Makes the orders that an executor gives to its workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from triggerer.domain.attempts import RunOrder


def order(run_pk: int, attempt: int = 1, **values: Any) -> RunOrder:
    """Return the order for an attempt of a manual run, without Spark. `values` replace fields of the order."""
    now = datetime.now(UTC)
    given = {
        "dag_id": "d",
        "run_id": f"run {run_pk}",
        "run_type": "manual",
        "attempt": attempt,
        "queued_at": now,
        "run_after": now,
        "logical_date": None,
        "data_interval_start": None,
        "data_interval_end": None,
        "params": {},
        "partition_key": None,
        "run_pk": run_pk,
        "path": "d.py",
        "needs_spark": False,
        "log_path": "",
        "epoch": attempt,
    }
    return RunOrder(**{**given, **values})
