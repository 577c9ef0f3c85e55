"""Conditions on the state of runs, written so that the databases use the partial indexes of `dag_run`.

A partial index covers only the runs in some states. The states are literals here, because with parameters the planners
could not know that the index's condition holds.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

ACTIVE: Final = text("dag_run.state IN ('queued', 'running')")
QUEUED: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'queued'")
RUNNING: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'running'")
UNSUCCESSFUL: Final = text("dag_run.state IN ('failed', 'cancelled')")
