"""This process's connections to the JVM, one for each thread, after a call was interrupted.

Nothing here imports PySpark, because a handler of a signal calls it in runs without Spark, too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def forget_connection() -> None:
    """Let this thread's next call open another connection to the JVM.

    The present call is interrupted, and its answer will come. PySpark's own cleaning, which follows, would take that
    for the answer to its first question. The interrupted frames hold the old connection, which closes when they go.
    """
    module: Any = sys.modules.get("pyspark.core.context")
    gateway = None if module is None else module.SparkContext._gateway  # noqa: SLF001
    client = getattr(gateway, "_gateway_client", None)
    # Without pinned threads (PYSPARK_PIN_THREAD), an interrupted call's connection is not used again anyway.
    thread = getattr(client, "thread_connection", None)
    if thread is not None:
        thread.connection = None


def enter_session(session: SparkSession) -> None:
    """Make the session the active one of Java's thread for this thread, which is new after `forget_connection`."""
    remote: Any = session
    jvm = remote._jvm  # noqa: SLF001
    remote._get_j_spark_session_class(jvm).setActiveSession(remote._jsparkSession)  # noqa: SLF001
