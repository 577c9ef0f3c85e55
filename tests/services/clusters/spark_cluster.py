"""A real standalone cluster of Spark's, one master and its workers, on free loopback ports."""

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from tests.services.process import Daemon, ServiceUnavailable, free_ports, running, temporary_home
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.classic import Installation, find_installation

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options for a JVM that lives for a minute, on few processors."""


@contextmanager
def open_spark_cluster(
    *, cores: int = 2, memory: str = "3g", workers: int = 1, runs_drivers: bool = False
) -> Iterator["SparkCluster"]:
    """Start a master, and workers with this number of cores and this much memory each.

    Args:
        runs_drivers: True to accept applications in cluster mode. The master then remembers them over a restart.
    Raises:
        ServiceUnavailable: There is no PySpark, or no Java for it.
    """
    with temporary_home("spark") as home:
        try:
            installation = find_installation(home)
        except SubmitFailed as absent:
            raise ServiceUnavailable(str(absent)) from absent
        cluster = SparkCluster(
            installation,
            home,
            cores=cores,
            memory=memory,
            workers=workers,
            runs_drivers=runs_drivers,
        )
        with running(cluster):
            yield cluster


class SparkCluster:
    """One master and its workers. All of them keep their ports when they are killed and started again.

    Attributes:
        url: The value for `[spark] master`.
        ports: Settings for `[spark.conf]`, with which a service finds the master's REST and web ports. A service needs
            them for applications in cluster mode.
        daemon: The process of the first worker.
        others: The processes of the other workers.
    """

    def __init__(
        self,
        installation: Installation,
        home: Path,
        *,
        cores: int,
        memory: str,
        workers: int,
        runs_drivers: bool = False,
    ) -> None:
        port, self._page, rest = free_ports(3)
        self.url = f"spark://127.0.0.1:{port}"
        self.ports = {
            "spark.master.rest.port": str(rest),
            "spark.master.ui.port": str(self._page),
        }
        self._recovery = home / "recovery"
        options = {"spark.master.rest.enabled": str(runs_drivers).lower()}
        if runs_drivers:
            options |= {
                "spark.master.rest.host": "127.0.0.1",
                "spark.master.rest.port": str(rest),
                "spark.deploy.recoveryMode": "FILESYSTEM",
                "spark.deploy.recoveryDirectory": str(self._recovery),
            }
        self._spark_class = installation.spark_home / "bin" / "spark-class"
        self._home = home
        self._env = {
            # The Java of the installation, because the system's Java may refuse some of Spark's options.
            "JAVA_HOME": str(installation.java_home),
            "SPARK_HOME": str(installation.spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Executors inherit this variable.
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(f"-D{key}={text}" for key, text in options.items()),
        }
        self.master = self._daemon(
            "master", ["--port", port, "--webui-port", self._page], ready=self._is_alive
        )
        self.daemon, *self.others = (
            self._worker(number, cores, memory) for number in range(workers)
        )

    def start(self) -> None:
        """Start the master and the workers, and wait until the master lists the workers."""
        for daemon in (self.master, self.daemon, *self.others):
            daemon.start()

    def kill(self) -> None:
        """Kill the master, the workers and their executors."""
        for daemon in (*self.others, self.daemon, self.master):
            daemon.kill()

    def forget_drivers(self) -> None:
        """Remove the drivers that a killed master would remember at its next start."""
        shutil.rmtree(self._recovery)

    def state(self) -> dict[str, Any]:
        """Return the data of the master's page as JSON: workers, activeapps, coresused, ..."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    def executors(self) -> list[psutil.Process]:
        """Return the processes of Spark's executors, even if their worker was killed."""
        found = psutil.process_iter(["cwd", "cmdline"])
        return [
            process
            for process in found
            if (process.info["cwd"] or "").startswith(f"{self._home}/work-")
            and "CoarseGrainedExecutorBackend" in " ".join(process.info["cmdline"] or ())
        ]

    def _worker(self, number: int, cores: int, memory: str) -> Daemon:
        port, page = free_ports(2)
        arguments = ("--port", port, "--webui-port", page, "--cores", cores, "--memory", memory)
        return self._daemon(
            "worker",
            [*arguments, "--work-dir", self._home / f"work-{number}", self.url],
            ready=lambda: self._has_worker(port),
            name="worker" if number == 0 else f"worker-{number}",
        )

    def _daemon(
        self,
        kind: str,
        arguments: Sequence[object],
        *,
        ready: Callable[[], bool],
        name: str | None = None,
    ) -> Daemon:
        program = f"org.apache.spark.deploy.{kind}.{kind.title()}"
        command = [str(self._spark_class), program, "--host", "127.0.0.1", *map(str, arguments)]
        return Daemon(
            f"spark-{name or kind}",
            command,
            log=self._home / f"{name or kind}.log",
            ready=ready,
            env=self._env,
        )

    def _is_alive(self) -> bool:
        try:
            return bool(self.state()["status"] == "ALIVE")
        except (OSError, ValueError):
            return False

    def _has_worker(self, port: int) -> bool:
        return any(
            worker["port"] == port and worker["state"] == "ALIVE"
            for worker in self.state()["workers"]
        )
