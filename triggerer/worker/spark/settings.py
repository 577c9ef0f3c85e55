"""Makes and checks a session's configuration: our defaults, and the user's settings, which replace our defaults."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from triggerer.config import SparkSettings
from triggerer.errors import ConfigurationError
from triggerer.worker.spark.sessions.reachability import connect_endpoint

LOCAL: Final = "local"
"""Driver and executors share one JVM on this machine."""
CLASSIC: Final = "classic"
"""The driver is a JVM on this machine, and the executors belong to a cluster."""
CONNECT: Final = "connect"
"""The driver is a Spark Connect server."""
SUBMIT: Final = "submit"
"""Each run is an application of its own. `spark-submit` starts the application, and it ends with the run."""
_MODES: Final = (LOCAL, CLASSIC, CONNECT, SUBMIT)
LOCAL_MASTER: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"

_SHARING: Final = {
    "spark.dynamicAllocation.enabled": "true",
    # Dynamic allocation needs this setting, or a shuffle service, which few clusters have.
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    # By default, Spark never gives executors with shuffle files or cached data back to the cluster. With these two
    # timeouts, Spark gives such executors back when they are idle, and a later job must compute the data again. So the
    # timeouts are longer than a usual pause between two jobs of a run.
    "spark.dynamicAllocation.shuffleTracking.timeout": "30s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "60s",
}
"""A session starts without executors, requests them when it has tasks, and returns them when it has none."""
_OWN_ALLOCATION: Final = frozenset({"spark.dynamicAllocation.enabled", "spark.executor.instances"})
"""If a user sets one of these, the user decides how a session gets its executors, and `_SHARING` does not apply."""


_DRIVER_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_EXIT_NAME: Final = "ExitOnOutOfMemoryError"
_EXIT: Final = f"-XX:+{_EXIT_NAME}"
"""With this option a JVM exits if it runs out of memory. Otherwise only one thread might end, and Spark might wait for
this thread for ever."""


def mode_of(settings: SparkSettings) -> str:
    """Return `local`, `classic`, `connect` or `submit`. If no mode is set, `remote` and `master` decide.

    Raises:
        ConfigurationError: The mode is unknown, or contradicts the master or the remote.
    """
    mode, master, remote = settings.mode, settings.master, settings.remote
    if mode is None:
        mode = CONNECT if remote else LOCAL if is_local(master_of(settings)) else CLASSIC
    if mode not in _MODES:
        raise ConfigurationError(
            f"[spark] mode is {mode!r}", hint=f"it is one of: {', '.join(_MODES)}"
        )
    if mode == CONNECT:
        if not (remote or "").startswith("sc://"):
            raise ConfigurationError(
                f"[spark] mode is connect and remote is {remote or 'not set'}",
                hint='it has the form remote = "sc://host:15002"',
            )
        if master:
            raise ConfigurationError(
                "[spark] master and remote are both set",
                hint="a Spark Connect server has its own master: take master out, or take remote out",
            )
        return mode
    if remote:
        raise ConfigurationError(
            f"[spark] remote is set and mode is {mode}",
            hint='set mode = "connect", or take remote out',
        )
    _check_master(settings, mode)
    return mode


def connect_server(spark: Mapping[str, Any]) -> str | None:
    """Return the address of the Spark Connect server in the JSON of `[spark]`, without secrets.

    Return None if the settings name no server, or are malformed.
    """
    try:
        settings = SparkSettings.from_json(spark)
        is_connect = mode_of(settings) == CONNECT
        return f"sc://{connect_endpoint(settings.remote or '')}" if is_connect else None
    except ConfigurationError:
        return None


def _check_master(settings: SparkSettings, mode: str) -> None:
    master, in_conf = settings.master, settings.conf.get("spark.master")
    if (master or in_conf or "").startswith("sc://"):
        raise ConfigurationError(
            f"[spark] master is {master or in_conf!r}",
            hint='a Spark Connect server goes into remote, with mode = "connect"',
        )
    if master and in_conf and master != in_conf:
        raise ConfigurationError(
            f"[spark] master is {master!r}, and conf has spark.master = {in_conf!r}",
            hint="take one of the two out",
        )
    if mode == LOCAL and not is_local(master_of(settings)):
        raise ConfigurationError(
            f"[spark] mode is local and master is {master_of(settings)!r}",
            hint='set mode = "classic" for this cluster, or take master out',
        )
    if mode == CLASSIC and not (master or in_conf):
        raise ConfigurationError(
            "[spark] mode is classic and master is not set",
            hint='set master = "spark://host:7077", or mode = "local" for this machine',
        )


def master_of(settings: SparkSettings) -> str:
    """Return the master of a classic session."""
    return settings.master or settings.conf.get("spark.master") or LOCAL_MASTER


def is_local(master: str) -> bool:
    """Return whether this master is local: driver and executors share one JVM on this machine."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str) -> int:
    """Return how many tasks a local master runs at once: 3 for `local[3]` and `local[3,1]`."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if match is None or match[1] is None:
        return 1
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])


def classic_conf(
    settings: SparkSettings,
    *,
    app_name: str,
    warehouse: Path,
    java_options: list[str],
    elsewhere: frozenset[str],
    python_daemon: str | None = None,
) -> dict[str, str]:
    """Return the complete configuration with which a classic session starts.

    Args:
        warehouse: The directory for tables without a path.
        java_options: Options for the driver's JVM. The user's `extraJavaOptions` follow on the command line, and
            override them.
        elsewhere: The keys of the operator's `spark-defaults.conf`. Our defaults do not replace these settings.
        python_daemon: The module that starts Python workers; None: PySpark's own.
    """
    master = master_of(settings)
    defaults = {
        "spark.app.name": app_name,
        # No progress bar, because the output goes into a log.
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # FAIR divides the cores among the scheduler pools. If a run executes tasks side by side, each task has a pool.
        # Without pools, FAIR has no effect.
        "spark.scheduler.mode": "FAIR",
        # A cancelled Python function is killed after this time. Spark's default is two seconds.
        "spark.python.task.killTimeout": "100ms",
    }
    if python_daemon is not None:
        defaults["spark.python.daemon.module"] = python_daemon
    if is_local(master):
        defaults |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            # Spark's default of 200 would start 200 nearly empty tasks for a handful of events.
            "spark.sql.shuffle.partitions": str(max(4, 2 * local_cores(master))),
            "spark.sql.warehouse.dir": str(warehouse),
            _DRIVER_OPTIONS: shlex_join([_EXIT, *java_options]),
        }
    else:
        # On a cluster, each Spark task gets a new Python worker. Otherwise a function could find
        # the modules and variables of another run.
        defaults["spark.python.worker.reuse"] = "false"
    if not is_local(master) and not _OWN_ALLOCATION & (settings.conf.keys() | elsewhere):
        defaults |= _SHARING
        if master.startswith("spark://"):
            # By default, an executor on a standalone cluster takes all cores of its Spark worker. Then each Spark
            # worker could serve only one session. On YARN and Kubernetes, the default is one core.
            defaults["spark.executor.cores"] = "1"
    defaults.setdefault(_DRIVER_OPTIONS, _EXIT)
    ours = {key: value for key, value in defaults.items() if key not in elsewhere}
    theirs = dict(settings.conf)
    if _EXIT_NAME not in theirs.get(_DRIVER_OPTIONS, _EXIT_NAME):
        theirs[_DRIVER_OPTIONS] = f"{_EXIT} {theirs[_DRIVER_OPTIONS]}"
    return {
        **ours,
        **theirs,
        "spark.master": master,
        # The settings decide between classic and Connect, not an environment variable.
        "spark.api.mode": CLASSIC,
    }


def shlex_join(options: list[str]) -> str:
    """Join options for Spark's launcher, which splits them as a shell does: at spaces outside quotes."""
    return " ".join(
        option if shlex.quote(option) == option else f'"{option}"' for option in options
    )


def keys_in_spark_defaults(environ: Mapping[str, str], spark_home: Path) -> frozenset[str]:
    """Return the keys that `spark-defaults.conf` sets; empty if the file does not exist."""
    file = Path(environ.get("SPARK_CONF_DIR") or spark_home / "conf", "spark-defaults.conf")
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    keys = (re.match(r"\s*(spark\.[^\s=:]+)", line) for line in lines)
    return frozenset(match[1] for match in keys if match)


def has_own_logging(environ: Mapping[str, str], spark_home: Path) -> bool:
    """Return whether the operator has a logging configuration in Spark's configuration folder."""
    directory = Path(environ.get("SPARK_CONF_DIR") or spark_home / "conf")
    return any(directory.glob("log4j2*"))


def reason_of(error: BaseException) -> str:
    """Return the line of a Java or PySpark error that has the actual reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Py4J writes "An error occurred while calling ...", and then a line ": java.lang.SomeException: REASON".
    java = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return next(iter(java or lines), type(error).__name__)
