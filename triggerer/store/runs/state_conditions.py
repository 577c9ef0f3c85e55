"""Conditions on the state of runs, in the form that the partial indexes of `dag_run` serve.

They have no parameters, because the planners use a partial index only for a literal condition.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

ACTIVE: Final = text("dag_run.state IN ('queued', 'running')")
QUEUED: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'queued'")
RUNNING: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'running'")
UNSUCCESSFUL: Final = text("dag_run.state IN ('failed', 'cancelled')")
