"""Spark: sessions, their JVM, and events as DataFrames. Nothing here imports PySpark before a session is opened."""

from triggerer.config import SparkSettings
from triggerer.worker.spark.dataframes.dataframe import EVENT_COLUMNS, to_dataframe
from triggerer.worker.spark.jvm.warmup import warm_up
from triggerer.worker.spark.sessions.absent_cluster import await_cluster
from triggerer.worker.spark.sessions.cluster import needs_cluster, release_executors, why_waiting
from triggerer.worker.spark.sessions.session import (
    close_session,
    how_it_ended,
    is_alive,
    open_session,
)

__all__ = [
    "EVENT_COLUMNS",
    "SparkSettings",
    "await_cluster",
    "close_session",
    "how_it_ended",
    "is_alive",
    "needs_cluster",
    "open_session",
    "release_executors",
    "to_dataframe",
    "warm_up",
    "why_waiting",
]
