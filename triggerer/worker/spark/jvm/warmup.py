"""Executes a first query, so that the first run need not wait for class loading, code generation and Arrow."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from typing import TYPE_CHECKING

from triggerer.worker.spark.dataframes.dataframe import to_dataframe
from triggerer.worker.spark.sessions.connect import is_connect
from triggerer.worker.spark.settings import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def warm_up(session: SparkSession) -> None:
    """Make the calls that most runs begin with, once and with a few rows. No table or view is left.

    - On a Spark Connect server, execute only one query, because the server is warm already.
    - On a cluster, warm up only the driver, because executors may arrive late, and would be idle afterwards.
    """
    frame = _events(session)
    # The driver answers this query without an executor.
    frame.select("id", "extra.value.*").collect()
    if is_connect(session):
        return
    if not is_local(session.sparkContext.master or ""):
        with contextlib.redirect_stdout(io.StringIO()):
            _join(session, frame).explain()
        return
    _join(session, frame).collect()
    directory = tempfile.mkdtemp(prefix="triggerer-warm-up-")
    try:
        _join(session, frame).write.mode("overwrite").parquet(directory)
        session.read.parquet(directory).count()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _events(session: SparkSession) -> DataFrame:
    value = {"id": 1, "amount": 1.5, "name": "a", "tags": ["x"], "nested": {"ok": True}}
    event = {"id": 1, "timestamp": "1970-01-01T00:00:00+00:00", "extra": {"value": value}}
    return to_dataframe(session, [event, event | {"id": 2}])


def _join(session: SparkSession, events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    totals = events.groupBy("extra.value.name").agg(f.sum("extra.value.amount").alias("total"))
    names = session.range(2).select(f.lit("a").alias("name"), "id")
    return totals.join(names, "name").where(f.col("total") > 0).orderBy("id")
