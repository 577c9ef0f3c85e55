"""Lets several threads use a run's session: each thread has a scheduler pool and a tag for its jobs."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from triggerer.worker.spark.sessions.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def describe_jobs(session: SparkSession, run: str) -> None:
    """Label this thread's jobs with the run in Spark's web pages. Over Connect, the session's tag is the label."""
    if not is_connect(session):
        session.sparkContext.setLocalProperty("spark.job.description", run)


def enter_thread(session: SparkSession, run: str, task_id: str) -> None:
    """Prepare this thread for one task. The task's jobs share the cores fairly with the jobs of other tasks.

    On a Spark Connect server, the jobs only get a tag.
    """
    if is_connect(session):
        session.addTag(tag_of(task_id))
        return
    context: Any = session.sparkContext
    context.addJobTag(tag_of(task_id))
    context.setLocalProperty("spark.scheduler.pool", task_id)
    context.setLocalProperty("spark.job.description", f"{run} {task_id}")
    # The Java thread that serves this Python thread has no active session yet.
    remote: Any = session
    jvm = remote._jvm  # noqa: SLF001
    remote._get_j_spark_session_class(jvm).setActiveSession(remote._jsparkSession)  # noqa: SLF001


def cancel_task(session: SparkSession, task_id: str) -> None:
    """Cancel the jobs of one task, from any thread. The other tasks continue."""
    if is_connect(session):
        session.interruptTag(tag_of(task_id))
    else:
        session.sparkContext.cancelJobsWithTag(tag_of(task_id))


def tag_of(task_id: str) -> str:
    """Return the tag of a task's jobs, for a run that executes tasks side by side."""
    return f"task-{sha256(task_id.encode()).hexdigest()[:16]}"
