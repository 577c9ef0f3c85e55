"""Opens, checks and closes the Spark session of this process, classic or over Connect."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from triggerer.config import SparkSettings
from triggerer.worker.spark.sessions import classic, connect
from triggerer.worker.spark.settings import CONNECT, mode_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOSE_GRACE: Final = timedelta(seconds=10)


def open_session(
    settings: SparkSettings,
    *,
    home: Path,
    app_name: str,
) -> SparkSession:
    """Open this process's session. When the process ends, even if it is killed, the session ends, too.

    With a local master, the call takes seconds. It takes longer if packages are downloaded or a cluster has no room.

    Args:
        home: The service's own directory. Its folders `java` and `spark` are written to.
    Raises:
        ConfigurationError: The settings contradict one another.
        SubmitFailed: No session could be opened: PySpark, Java or bash is missing, a master or a server does not
            answer, or Spark refuses a setting. No process is left running.
    """
    if mode_of(settings) == CONNECT:
        return connect.open_connect(settings)
    return classic.open_classic(settings, classic.find_installation(home), app_name=app_name)


def is_alive(session: SparkSession) -> bool:
    """Return whether the session is usable: its JVM, master or server answers, and the session was not stopped."""
    if connect.is_connect(session):
        return connect.is_connect_alive(session)
    return classic.is_classic_alive(session)


def how_it_ended(session: SparkSession) -> str | None:
    """Return how a session ended, as a clause for the user. None: the cause is unknown."""
    if connect.is_connect(session):
        return "the Spark Connect server no longer knows this session"
    return classic.how_classic_ended(session)


def close_session(session: SparkSession, *, grace: timedelta = CLOSE_GRACE) -> bool:
    """Stop the session. A second call does nothing. The function never raises.

    The JVM of a classic session is stopped too, and killed after `grace`.

    Returns:
        True if the session has ended. False: a Spark Connect server did not confirm the end.
    """
    if connect.is_connect(session):
        return connect.close_connect(session)
    classic.close_classic(grace)
    return True
