"""Conditions on the state of runs that the partial indexes of `dag_run` serve.

They are written out, without parameters: only then do the planners see that the index covers them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

ACTIVE: Final = text("dag_run.state IN ('queued', 'running')")
QUEUED: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'queued'")
RUNNING: Final = text("dag_run.state IN ('queued', 'running') AND dag_run.state = 'running'")
UNSUCCESSFUL: Final = text("dag_run.state IN ('failed', 'cancelled')")
