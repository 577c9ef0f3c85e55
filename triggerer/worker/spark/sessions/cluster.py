"""Finds out why a classic session waits for executors of its cluster, and gives an idle session's executors back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from triggerer.config import SparkSettings
from triggerer.worker.spark.sessions.connect import is_connect
from triggerer.worker.spark.sessions.reachability import master_endpoints
from triggerer.worker.spark.settings import CONNECT, is_local, master_of, mode_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HINT: Final = "the cluster's web UI shows who holds its cores, and how large its workers are"
_ANSWER_TIMEOUT: Final = "10s"
_RELEASE_S: Final = 2.0
"""How long to wait until a session has withdrawn its requests for executors, and then until its executors are gone."""
_POLL_S: Final = 0.02


def needs_cluster(settings: SparkSettings) -> bool:
    """Return whether sessions get their executors from a cluster. False for Connect, whose server has the executors.

    Raises:
        ConfigurationError: The settings contradict one another, see `mode_of`.
    """
    return mode_of(settings) != CONNECT and not is_local(master_of(settings))


def why_waiting(session: SparkSession) -> str | None:
    """Return the reason why the session has work but no executor. None: it has no work, or has an executor.

    The call takes a millisecond, and any thread may make it. The session must be on a cluster.

    Raises:
        Exception: An error of Py4J: the JVM is gone.
    """
    context: Any = session.sparkContext
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    tasks = sum(stage.numTasks - stage.numCompletedTasks for stage in stages if stage)
    # This status counts the driver like an executor, so 1 means: no executor.
    if not tasks or _scala(context).getExecutorMemoryStatus().size() > 1:
        return None
    if has_lost_master(session):
        return f"{context.master}, which no longer answers this session (cancel the run; the next run opens another)"
    conf = context.getConf()
    return describe_need(
        context.master or "",
        tasks=tasks,
        cores=conf.get("spark.executor.cores"),
        memory=conf.get("spark.executor.memory") or "1g",
        driver_host=conf.get("spark.driver.host") or "",
    )


def describe_need(
    master: str, *, tasks: int, cores: str | None, memory: str, driver_host: str
) -> str:
    """Return the missing resource and the probable reason, as the end of a sentence for the user.

    Args:
        cores: The cores of an executor; None: all cores of a Spark worker.
    """
    wanted = f"{tasks} task" if tasks == 1 else f"{tasks} tasks"
    size = "all cores of a worker" if cores is None else f"{cores} core{'s' * (cores != '1')}"
    hint = _HINT
    hosts = [endpoint.host for endpoint in master_endpoints(master)] or [""]
    if _is_loopback(driver_host) and not all(map(_is_loopback, hosts)):
        hint = f"no other machine can reach the driver at {driver_host}: set spark.driver.host"
    return f"an executor on {master} for {wanted}; it needs {size} and {memory} of memory ({hint})"


def has_lost_master(session: SparkSession) -> bool:
    """Return whether a standalone master no longer answers this session. The call takes some milliseconds.

    A master that was restarted without recovery has forgotten its applications. Spark does not notice, and would wait
    for executors for ever.
    """
    from py4j.protocol import Py4JError, Py4JJavaError

    context: Any = session.sparkContext
    if context._jsc is None or not context.master.startswith("spark://"):  # noqa: SLF001
        return False
    jvm = context._jvm  # noqa: SLF001
    try:
        # A request for zero executors changes nothing. Its answer tells whether the master still knows the application.
        nothing = jvm.PythonUtils.toScalaMap({})
        answer = _scala(context).schedulerBackend().doRequestTotalExecutors(nothing)
        timeout = jvm.scala.concurrent.duration.Duration.apply(_ANSWER_TIMEOUT)
        return not jvm.scala.concurrent.Await.result(answer, timeout)
    except Py4JJavaError:
        return True
    except Py4JError:
        # Either the JVM is gone, which other code reports, or this version of Spark lacks the method.
        return False


def quieten(session: SparkSession) -> None:
    """Silence three loggers of Spark.

    Two of them write ten times a second while a master is unavailable. The third warns about the scheduler pool of
    each task, because no file configures our pools.
    """
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    # If Spark uses another logging library, there is nothing to configure.
    with contextlib.suppress(Exception):
        log4j = jvm.org.apache.logging.log4j
        configurator = log4j.core.config.Configurator
        configurator.setLevel("org.apache.spark.ExecutorAllocationManager", log4j.Level.ERROR)
        configurator.setLevel("org.apache.spark.network.client.TransportClient", log4j.Level.OFF)
        pools = "org.apache.spark.scheduler.FairSchedulableBuilder"
        configurator.setLevel(pools, log4j.Level.ERROR)


def release_executors(session: SparkSession) -> None:
    """Give the executors of an idle session back to the cluster, and wait some seconds until their cores are free.

    The data that the executors have cached is lost. If the session has work, or if the user has fixed the number of
    executors, the session keeps its executors.

    Raises:
        Exception: An error of Py4J: the JVM is gone.
    """
    if is_connect(session):
        return
    conf = session.sparkContext.getConf()
    is_dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    if not is_dynamic or conf.get("spark.dynamicAllocation.minExecutors", "0") != "0":
        return
    backend = _scala(session.sparkContext).schedulerBackend()
    # Spark checks ten times a second how many executors it needs. Wait until Spark requests no executors any longer.
    # Otherwise the cluster would replace the executors that are killed below.
    if not _within(_RELEASE_S, lambda: _is_empty(session, backend.getRequestedTotalExecutors())):
        return
    # SparkContext.killExecutors refuses during dynamic allocation, so call the scheduler's backend.
    adjust_target, count_failures, force = False, False, True
    backend.killExecutors(backend.getExecutorIds(), adjust_target, count_failures, force)
    # Wait, so that other applications can get the cores before the next run requests them.
    _within(_RELEASE_S, lambda: backend.getExecutorIds().isEmpty())


def _is_empty(session: SparkSession, requested: Any) -> bool:
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    return not any(jvm.scala.jdk.javaapi.CollectionConverters.asJava(requested).values())


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _scala(context: Any) -> Any:
    return context._jsc.sc()  # noqa: SLF001


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
