"""Replaces a thread's connection to the JVM after an interrupted call.

Nothing here imports PySpark, because the signal handler that calls this module also serves runs without Spark.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def forget_connection() -> None:
    """Let this thread's next call open another connection to the JVM, because the present call is interrupted.

    The answer to the interrupted call still arrives on the old connection, where the next call would receive it.
    """
    module: Any = sys.modules.get("pyspark.core.context")
    gateway = None if module is None else module.SparkContext._gateway  # noqa: SLF001
    client = getattr(gateway, "_gateway_client", None)
    # Without pinned threads (PYSPARK_PIN_THREAD), Py4J itself drops the connection of an interrupted call.
    thread = getattr(client, "thread_connection", None)
    if thread is not None:
        thread.connection = None


def enter_session(session: SparkSession) -> None:
    """Make the session active for this thread's Java thread, which is a new thread after `forget_connection`."""
    remote: Any = session
    jvm = remote._jvm  # noqa: SLF001
    remote._get_j_spark_session_class(jvm).setActiveSession(remote._jsparkSession)  # noqa: SLF001
