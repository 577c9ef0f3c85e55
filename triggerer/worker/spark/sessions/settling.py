"""Waits until Spark no longer executes any work of a failed try, so that the next try is alone.

Spark ends a cancelled job at once. But Spark's executor waits for some seconds before it kills the Python worker of an
interrupted task. Until then, the worker continues to execute the user's function.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from triggerer.worker.spark.jvm.leftovers import end_python_workers
from triggerer.worker.spark.sessions.connect import is_connect
from triggerer.worker.spark.settings import is_local
from triggerer.worker.spark.threads import tag_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KILL_TIMEOUT: Final = ("spark.python.task.killTimeout", "2s")
_MONITOR_S: Final = 2.0
"""The interval at which Spark checks whether the task of a Python worker was interrupted. If it was, Spark waits for
`killTimeout`, and then kills the worker. Source: PythonRunner.MonitorThread in Spark 4.1."""
_MARGIN_S: Final = 0.5
_ENDING_S: Final = 5.0
"""How long a Spark task may take to end once its Python worker is gone."""
_LOOK_EVERY_S: Final = 0.05
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def await_end(session: SparkSession, task_id: str | None) -> bool:
    """Wait until no job, no Spark task and no Python worker is at work for the session.

    A Spark Connect server does not report its work. So wait as long as a Python worker of an interrupted Spark task can
    survive, and return True.

    Args:
        task_id: Wait only for the work of this task of the DAG, because other tasks of the run continue. None: wait for
            all work, and cancel jobs that are active during the wait.
    Returns:
        False: The work did not end in time.
    """
    if is_connect(session):
        remote: Any = session
        time.sleep(python_workers_live_for_s(remote.client))
        return True
    context: Any = session.sparkContext
    lives_s = _seconds_of_workers(context.getConf().get(*_KILL_TIMEOUT))
    if task_id is not None:
        return _within(lives_s + _ENDING_S, partial(_is_task_over, context, task_id))
    pid = context._jvm.java.lang.ProcessHandle.current().pid()  # noqa: SLF001
    return _within(lives_s + _ENDING_S, partial(_is_all_over, context, pid))


def python_workers_live_for_s(client: Any) -> float:
    """Return how many seconds a Python worker of an interrupted Spark task may still live on a Spark Connect server.

    Args:
        client: The client of a session at this server.
    """
    (kill_timeout,) = client.get_config_with_defaults(_KILL_TIMEOUT)
    return _seconds_of_workers(kill_timeout or _KILL_TIMEOUT[1])


def _is_all_over(context: Any, jvm: int) -> bool:
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001
    jobs = list(tracker.getActiveJobIds())
    if jobs:
        context.cancelAllJobs()
    if is_local(context.master):
        daemon = context.getConf().get("spark.python.daemon.module", "pyspark.daemon")
        end_python_workers(jvm, daemon)
    return not jobs and not any(one.numRunningTasks() for one in tracker.getExecutorInfos())


def _is_task_over(context: Any, task_id: str) -> bool:
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001
    jobs = set(tracker.getJobIdsForTag(tag_of(task_id)))
    if jobs & set(tracker.getActiveJobIds()):
        return False
    stages = {stage for job in jobs for stage in context.statusTracker().getJobInfo(job).stageIds}
    found = [context.statusTracker().getStageInfo(stage) for stage in stages]
    return not any(stage.numActiveTasks for stage in found if stage is not None)


def _within(seconds: float, is_over: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_over():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _seconds_of_workers(kill_timeout: str) -> float:
    return _MONITOR_S + _seconds(kill_timeout) + _MARGIN_S


def _seconds(duration: str) -> float:
    """Return a duration of Spark's configuration in seconds. A number without a unit means milliseconds."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", duration)
    if found is None:
        return 2.0
    return int(found[1]) * _UNITS.get(found[2], 0.001)
