"""Clears the traces of a run from a JVM, so that the next run does not see them.

All Spark sessions of a JVM share the Spark context, the cache of data and the Java objects. This module uses internals
of PySpark and Spark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from triggerer.processes.descendants import children_of, kill

_ADDED: Final = {
    "addedFiles": "removeFile",
    "addedArchives": "removeFile",
    "addedJars": "removeJar",
}
"""The kinds of files that a run can add for Spark's executors, each with the method of Spark's file server that removes
a file."""
_DEFAULT: Final = "default"
_ENDING_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.01

Baseline = Mapping[str, Any]
"""The Java objects that `remember` returns, by name. `clear` does not remove them."""


class _Classes:
    """Finds Java classes by their full names, without a request to the JVM.

    Py4J's own way, `jvm.java.util.ArrayList`, asks the JVM about each part of the name, and takes up to 4 ms.
    """

    def __init__(self, gateway: Any) -> None:
        self._client = gateway._gateway_client  # noqa: SLF001
        self._converters = self["scala.jdk.javaapi.CollectionConverters"]

    def __getitem__(self, name: str) -> Any:
        from py4j.java_gateway import JavaClass

        return JavaClass(name, self._client)

    def as_java(self, scala_map: Any) -> Any:
        """Return a view of a Scala map as a Java map."""
        return self._converters.asJava(scala_map)


def remember(context: Any, session: Any) -> dict[str, Any]:
    """Store a JVM's present state in Java objects, and return these objects for `clear`.

    Args:
        context: PySpark's context. No run has used it yet.
        session: The context's session.
    """
    gateway, scala = context._gateway, context._jsc.sc()  # noqa: SLF001
    java = _Classes(gateway)
    baseline = {
        "context": context._jsc,  # noqa: SLF001
        "session": session._jsparkSession,  # noqa: SLF001
        "listeners": java["java.util.ArrayList"](scala.listenerBus().listeners()),
        "hadoop": java["java.util.HashMap"](scala.hadoopConfiguration().getPropsWithPrefix("")),
        "properties": java["java.lang.System"].getProperties().clone(),
    }
    for name in _ADDED:
        added = _added(java, scala, name)
        baseline[name] = java["java.util.HashSet"](*([] if added is None else [added]))
    # Store Py4J's names of all Java objects that Python refers to now, including this set of names. `clear` removes all
    # other objects.
    bindings = java["java.util.HashSet"](_bindings(gateway).keySet())
    bindings.add(bindings._target_id)  # noqa: SLF001
    return baseline | {"bindings": bindings}


def recall(names: Mapping[str, str], client: Any) -> dict[str, Any]:
    """Return the Java objects that `remember` returned in another process. `names` has Py4J's names of them."""
    from py4j.java_collections import JavaMap, JavaSet
    from py4j.java_gateway import JavaObject

    kinds = dict.fromkeys(_ADDED, JavaSet) | {"hadoop": JavaMap}
    return {name: kinds.get(name, JavaObject)(one, client) for name, one in names.items()}


def clear(
    gateway: Any, baseline: Baseline, *, pid: int, log_level: str, python_daemon: str
) -> None:
    """Undo a run's changes to the JVM outside the run's session, and end the run's jobs and queries.

    Call this function before this process creates Java objects, because the function would remove them.

    Args:
        pid: The JVM's process id.
        log_level: The level that the root logger gets.
        python_daemon: The name of the module that starts Spark's Python workers.
    Raises:
        Exception: An error of Py4J: the JVM is gone, or hangs in an operation.
    """
    java, scala = _Classes(gateway), baseline["context"].sc()
    shared = baseline["session"].sharedState()
    _stop_work(scala, shared)
    end_python_workers(pid, python_daemon)
    if not shared.cacheManager().isEmpty():
        shared.cacheManager().clearCache()
    for rdd in java.as_java(scala.getPersistentRDDs()).values():
        rdd.unpersist(False)
    shared.globalTempViewManager().clear()
    listeners = java["java.util.ArrayList"](scala.listenerBus().listeners())
    listeners.removeAll(baseline["listeners"])
    for listener in listeners:
        scala.removeSparkListener(listener)
    _restore_settings(java, scala, baseline, log_level)
    for name, forget in _ADDED.items():
        _remove_added(java, scala, name, forget, baseline[name])
    # This comes last, because it also removes the Java objects that this function has used.
    _bindings(gateway).keySet().retainAll(baseline["bindings"])


def end_python_workers(jvm: int, python_daemon: str) -> None:
    """Kill Spark's Python workers on this machine, because they still have modules and variables of a run's functions.

    The daemon that forks the Python workers stays, because it never executes a user's function.
    """
    for child in children_of(jvm):
        if python_daemon in _command_of(child):
            for worker in children_of(child):
                kill(worker)
        else:
            kill(child)


def kill_jvm(jvm: int) -> None:
    """Kill a JVM on this machine, and the processes that it has started, such as Spark's Python workers."""
    started = children_of(jvm)
    kill(jvm)
    for child in started:
        try:
            # The daemon of the Python workers leads their process group.
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            kill(child)


def _command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _stop_work(scala: Any, shared: Any) -> None:
    scala.cancelAllJobs()
    for query in list(shared.activeStreamingQueries().values()):
        query.stop()
    tracker = scala.statusTracker()
    deadline = time.monotonic() + _ENDING_S
    while list(tracker.getActiveJobIds()) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        scala.cancelAllJobs()


def _restore_settings(java: _Classes, scala: Any, baseline: Baseline, log_level: str) -> None:
    system = java["java.lang.System"]
    if not system.getProperties().equals(baseline["properties"]):
        system.setProperties(baseline["properties"].clone())
    hadoop = scala.hadoopConfiguration()
    now = hadoop.getPropsWithPrefix("")
    if not now.equals(baseline["hadoop"]):
        for name in set(now.keySet()) - set(baseline["hadoop"].keySet()):
            hadoop.unset(name)
        for name, value in baseline["hadoop"].items():
            if now.get(name) != value:
                hadoop.set(name, value)
    if log_level != _log_level(java):
        scala.setLogLevel(log_level)
    getattr(scala, "checkpointDir_$eq")(java["scala.Option"].empty())


def log_level_of(context: Any) -> str:
    """Return the level of the root logger of a context's JVM."""
    return _log_level(_Classes(context._gateway))  # noqa: SLF001


def _log_level(java: _Classes) -> str:
    return str(java["org.apache.spark.util.Utils"].getLogLevel())


def _added(java: _Classes, scala: Any, name: str) -> Any:
    """Return the addresses of the files, archives or JARs that a context has; None if there are none.

    The result is a view: removing an address from it changes the context.
    """
    inner = java.as_java(getattr(scala, name)()).get(_DEFAULT)
    return None if inner is None else java.as_java(inner).keySet()


def _remove_added(java: _Classes, scala: Any, name: str, forget: str, baseline: Any) -> None:
    added = _added(java, scala, name)
    theirs = set() if added is None else set(added) - set(baseline)
    if not theirs:
        return
    added.retainAll(baseline)
    folder = Path(java["org.apache.spark.SparkFiles"].getRootDirectory())
    server = scala.env().rpcEnv().fileServer()
    for address in theirs:
        file = address.rpartition("/")[2]
        # Remove the file from the file server, too. Otherwise a later run that adds another file of this name would get
        # an error or the old file.
        getattr(server, forget)(file)
        with contextlib.suppress(OSError):
            (folder / file).unlink()


def _bindings(gateway: Any) -> Any:
    from py4j.java_gateway import JavaObject

    # Py4J gives this name to its own server, see `ensure_callback_server_started` in PySpark.
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)  # noqa: SLF001
    return server.getGateway().getBindings()
