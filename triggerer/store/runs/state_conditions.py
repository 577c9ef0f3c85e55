"""Conditions on the state of runs, written so that the databases use the partial indexes of `dag_run`.

A partial index covers only the runs in some states. A planner uses it only if the query shows these states as literals,
not as parameters.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

ACTIVE: Final = text("dag_run.state IN ('queued', 'running')")
QUEUED: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'queued'")
RUNNING: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'running'")
UNSUCCESSFUL: Final = text("dag_run.state IN ('failed', 'cancelled')")
