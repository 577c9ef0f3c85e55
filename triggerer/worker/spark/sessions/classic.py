"""Classic sessions: Spark's driver runs in a JVM next to this process."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from triggerer.config import SparkSettings
from triggerer.errors import SubmitFailed
from triggerer.processes.lifelines import armed_lifelines
from triggerer.worker.spark.explanations import explain_spark
from triggerer.worker.spark.jvm import gateway as jvm
from triggerer.worker.spark.jvm.archive import ClassArchive, archive_for, quiet_options
from triggerer.worker.spark.jvm.java import (
    Java,
    find_java,
    java_home_for_spark,
    newest_java,
    write_whole,
)
from triggerer.worker.spark.sessions.cluster import has_lost_master, quieten
from triggerer.worker.spark.sessions.reachability import master_endpoints, require_reachable
from triggerer.worker.spark.settings import (
    classic_conf,
    has_own_logging,
    is_local,
    keys_in_spark_defaults,
    master_of,
    reason_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J: Final = """\
# Written by triggerer. It is not used if you have a file $SPARK_CONF_DIR/log4j2.properties.
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}{UTC} %p %c{1}: %m%n%ex
# Only a Hadoop cluster has Hadoop's native library, so the warning that it is absent helps nobody.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# Between two runs the idle Python workers are ended (worker/spark/jvm/leftovers.py). Spark warns about each.
logger.python.name = org.apache.spark.api.python.PythonWorkerFactory
logger.python.level = error
# Tasks side by side have a pool each (worker/spark/threads.py), without `fairscheduler.xml`: its absence is fine.
logger.pools.name = org.apache.spark.scheduler.FairSchedulableBuilder
logger.pools.level = error
"""

ON_PYTHON_PATH: Final = Path(__file__).parent / "on_python_path"
_PYTHON_DAEMON: Final = "triggerer_python_daemon"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Installation:
    """The Java, the PySpark and the folder with which a classic session starts."""

    spark_home: Path
    java: Java
    java_home: Path
    """The `JAVA_HOME` for Spark's launcher: the home of `java`, or a folder with a script that calls `java`."""
    archive: ClassArchive
    directory: Path
    """Spark's folder in the service's home: it contains archives, the configuration of logging, and tables."""


def find_installation(home: Path) -> Installation:
    """Return the installation from which this process would start Spark.

    If Java needs a script that corrects its arguments (`java_home_for_spark`), write the script below `home`.

    Raises:
        SubmitFailed: PySpark is missing, no suitable Java is installed, or the script cannot be written.
    """
    try:
        import pyspark
    except ImportError as error:
        raise SubmitFailed(
            f"PySpark cannot be imported: {error}", hint="pip install 'triggerer[spark]'"
        ) from error

    spark_home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    if not (spark_home / "bin" / "spark-submit").exists():
        raise SubmitFailed(
            f"{spark_home} is no Spark: it has no bin/spark-submit",
            hint="pip install 'triggerer[spark]', and correct or unset SPARK_HOME",
        )
    home = home.absolute()
    java = find_java(os.environ, newest=newest_java(pyspark.__version__))
    return Installation(
        spark_home=spark_home,
        java=java,
        java_home=java_home_for_spark(java, home / "java"),
        archive=archive_for(java, spark_home, pyspark.__version__, home / "spark" / "classes"),
        directory=home / "spark",
    )


def open_classic(
    settings: SparkSettings,
    installation: Installation,
    *,
    app_name: str,
    extra_java_options: Sequence[str] = (),
    streams: jvm.JvmStreams | None = None,
) -> SparkSession:
    """Start a JVM, connect to the master, and return the session.

    Args:
        streams: The streams of a JVM that outlives this process, because another process owns the JVM. None: the JVM
            ends with this process.
    Raises:
        SubmitFailed: No session could be opened. Nothing is left running.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    master = master_of(settings)
    _require_user_name()
    _require_no_session()
    require_reachable(f"The Spark master {master}", master_endpoints(master))
    environment = driver_environment(settings, installation)
    gateway, conf = _launch(
        settings, installation, environment, app_name, extra_java_options, streams
    )
    try:
        with jvm.laid_over_environment(environment), restoring_interrupt_handler():
            SparkContext(
                conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway
            )
            session = SparkSession.builder.config("spark.api.mode", "classic").getOrCreate()
    except Exception as error:
        reason = jvm.how_it_ended(gateway) or reason_of(error)
        _end(gateway, grace=timedelta(seconds=2))
        raise SubmitFailed(
            f"Spark did not start on {master}: {reason}",
            hint="standard error has its full output",
        ) from error
    if not is_local(master) and not has_own_logging(os.environ, installation.spark_home):
        quieten(session)
    return session


def is_classic_alive(session: SparkSession) -> bool:
    """Return whether the session's JVM runs, the session was not stopped, and its master still knows it."""
    context: Any = session.sparkContext
    gateway = context._gateway  # noqa: SLF001
    if gateway is None or context._jsc is None or jvm.how_it_ended(gateway):  # noqa: SLF001
        return False
    try:
        return not context._jsc.sc().isStopped() and not has_lost_master(session)  # noqa: SLF001
    except Exception:  # noqa: BLE001 - any error means that the session is not alive
        return False


def close_classic(grace: timedelta) -> None:
    """Stop this process's session, if there is one, and its JVM, by force after `grace`."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is not None:
        _end(gateway, grace=grace)


def how_classic_ended(session: SparkSession) -> str | None:
    """Return a clause that says how the session or its JVM ended. None: the cause is unknown."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    ended = None if gateway is None else jvm.how_it_ended(gateway)
    if ended is None and gateway is not None and has_lost_master(session):
        return "its master no longer answers it"
    return ended


def jvm_process() -> subprocess.Popen[bytes] | None:
    """Return the JVM of this process's session. None: there is no session."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    return None if gateway is None else jvm.process_of(gateway)


def _require_no_session() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return
    context: Any = SparkContext._active_spark_context  # noqa: SLF001
    if context is not None and jvm.how_it_ended(gateway) is None:
        raise SubmitFailed(
            "This process has a Spark session already",
            hint="close_session() first; a DAG takes the session that it is given as `spark`",
        )
    # The JVM died, or a task stopped the session. Make PySpark forget the JVM and the session. Otherwise PySpark would
    # use them again.
    _end(gateway, grace=timedelta(seconds=2))


def _require_user_name() -> None:
    """Fail at once if the user who runs this process has no name.

    Hadoop asks Java for the name, and fails obscurely after half a minute.
    """
    user_id = os.geteuid()
    try:
        pwd.getpwuid(user_id)
    except KeyError as error:
        raise SubmitFailed(
            f"Spark cannot run as the user {user_id}, which has no name here",
            hint="add this user to /etc/passwd, for instance in a container's entry point, or run as a named user",
        ) from error


def _launch(
    settings: SparkSettings,
    installation: Installation,
    environment: jvm.Environment,
    app_name: str,
    extra_java_options: Sequence[str],
    streams: jvm.JvmStreams | None,
) -> tuple[Any, dict[str, str]]:
    def launch(*archived: str) -> tuple[Any, dict[str, str]]:
        conf = classic_conf(
            settings,
            app_name=app_name,
            warehouse=installation.directory / "warehouse",
            java_options=[*_java_options(installation), *archived, *extra_java_options],
            elsewhere=keys_in_spark_defaults(os.environ, installation.spark_home),
            python_daemon=_PYTHON_DAEMON if _lifelines(settings) else None,
        )
        return jvm.launch(conf, environment, streams), conf

    archive = installation.archive
    if not archive.is_usable():
        return launch()
    try:
        return launch(f"-XX:SharedArchiveFile={archive.path}")
    except SubmitFailed as failed:
        if explain_spark(failed) is not None:
            # The error has a known cause other than the archive.
            raise
    # Launch outside the handler. Otherwise, the traceback of a second error would also contain the first one.
    launched = launch()
    _log.warning("archive of Spark's classes dropped: no JVM started with it", path=archive.path)
    archive.discard()
    return launched


def _java_options(installation: Installation) -> list[str]:
    """Return options that make Java start faster. Long jobs become slower, but users can set other options."""
    quick = ["-XX:TieredStopAtLevel=1", *quiet_options(installation.java)]
    return [*quick, *logging_options(installation)]


def logging_options(installation: Installation) -> list[str]:
    """Return options that make a driver log warnings and errors only.

    Empty if the operator has configured logging, or if the configuration file cannot be written.
    """
    if has_own_logging(os.environ, installation.spark_home):
        return []
    file = installation.directory / "log4j2.properties"
    try:
        write_whole(file, _LOG4J)
    except OSError as error:
        _log.warning("Spark logs in its own way", reason=str(error))
        return []
    return [f"-Dlog4j2.configurationFile={file.as_uri()}"]


def driver_environment(settings: SparkSettings, installation: Installation) -> jvm.Environment:
    """Return the variables for the JVM, and for a process that connects to it."""
    variables: dict[str, str | None] = {
        "JAVA_HOME": str(installation.java_home),
        # Without this variable, each start would run the first `python3` on PATH to find Spark.
        "SPARK_HOME": str(installation.spark_home),
        # If one of these variables is set, PySpark becomes a client of Spark Connect.
        "SPARK_REMOTE": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
    }
    if "SPARK_LAUNCHER_OPTS" not in os.environ:
        # The launcher is a JVM that only prints a command. These options make it start fast.
        variables["SPARK_LAUNCHER_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if is_local(master_of(settings)):
        variables.setdefault("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1")
    if lifelines := _lifelines(settings):
        paths = (str(ON_PYTHON_PATH), os.environ.get("PYTHONPATH"))
        variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        variables["TRIGGERER_LIFELINES"] = os.pathsep.join(lifelines)
    # PySpark ignores the setting `spark.pyspark.python`, so apply it here. As in `spark-submit`, the setting overrides
    # the variable `PYSPARK_PYTHON`.
    if named := settings.conf.get("spark.pyspark.python"):
        variables["PYSPARK_PYTHON"] = named
    elif "PYSPARK_PYTHON" not in os.environ:
        # With a local master, execute Python functions with this Python, and not with the first Python on PATH. With a
        # cluster, set no path, because the cluster's machines may have Python elsewhere.
        variables["PYSPARK_PYTHON"] = sys.executable if is_local(master_of(settings)) else None
    return variables


def _lifelines(settings: SparkSettings) -> tuple[str, ...]:
    """Return the paths of the lifelines that kill the session's Python workers, see `triggerer.processes.lifelines`.

    Empty if the Python workers run on other machines.
    """
    return armed_lifelines() if is_local(master_of(settings)) else ()


@contextlib.contextmanager
def restoring_interrupt_handler() -> Iterator[None]:
    """Restore SIGINT's handler after the block, because PySpark replaces it. Python's default is not restored."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if in_main_thread and handler not in (None, signal.default_int_handler):
            signal.signal(signal.SIGINT, handler)


def _end(gateway: Any, *, grace: timedelta) -> None:
    """End the JVM and make PySpark forget it, so that the next session gets a new JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    context: Any = SparkContext._active_spark_context  # noqa: SLF001
    with _py4j_silent():
        if context is not None:
            # The context is probably broken. The JVM's process is ended below in any case.
            with contextlib.suppress(Exception):
                context.stop()
        jvm.end(gateway, grace_s=grace.total_seconds())
    # Reset the attributes that SparkSession.stop() resets. PySpark's own tests do so, too, to get another JVM.
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None  # noqa: SLF001
    SQLContext._instantiatedContext = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


@contextlib.contextmanager
def _py4j_silent() -> Iterator[None]:
    """Silence the traceback that Py4J logs for every call to a dead JVM, and PySpark's warnings."""
    logger = logging.getLogger("py4j")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
