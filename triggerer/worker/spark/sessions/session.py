"""The one Spark session of a process, classic or Connect: opened, watched and closed."""

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
    """Open this process's session. It ends with the process at the latest, whichever way the process ends.

    This waits as long as Spark does: some seconds for a local master, longer if packages are downloaded or a cluster
    has no room. Call it in a thread if anything else must continue meanwhile.

    Args:
        home: The service's own directory. Its parts `java` and `spark` are written to.
    Raises:
        ConfigurationError: The settings contradict one another.
        SubmitFailed: No session could be opened: PySpark, Java or bash is missing, a master or a server does not
            answer, or Spark refuses a setting. Nothing is left running.
    """
    if mode_of(settings) == CONNECT:
        return connect.open_connect(settings)
    return classic.open_classic(settings, classic.find_installation(home), app_name=app_name)


def is_alive(session: SparkSession) -> bool:
    """Return whether the session is usable: its JVM, master or server answers, and nobody has stopped it."""
    if connect.is_connect(session):
        return connect.is_connect_alive(session)
    return classic.is_classic_alive(session)


def how_it_ended(session: SparkSession) -> str | None:
    """Return why a session is no longer alive, as a sentence for the user; None: unknown."""
    if connect.is_connect(session):
        return "the Spark Connect server no longer knows this session"
    return classic.how_classic_ended(session)


def close_session(session: SparkSession, *, grace: timedelta = CLOSE_GRACE) -> bool:
    """Stop the session and its JVM, by force after `grace`. Never fails, and can be repeated.

    Returns:
        True if the session works no longer. False: a Spark Connect server did not confirm it.
    """
    if connect.is_connect(session):
        return connect.close_connect(session)
    classic.close_classic(grace)
    return True
