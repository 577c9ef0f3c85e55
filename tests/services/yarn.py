"""Hadoop's own small YARN: a resource manager and one node manager in one JVM, on free loopback ports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from tests.services.java import find_java
from tests.services.java_program import find_jars
from tests.services.process import Daemon, ServiceUnavailable, free_ports, running, temporary_home
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.classic import Installation, find_installation

_MAIN: Final = Path(__file__).with_name("hadoop") / "MiniYarn.java"
_WEB: Final = "yarn.resourcemanager.webapp.address"
_PORTS: Final = (
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.admin.address",
    _WEB,
    "yarn.nodemanager.address",
    "yarn.nodemanager.localizer.address",
    "yarn.nodemanager.collector-service.address",
    "yarn.nodemanager.webapp.address",
)
_OPENED: Final = ("java.base/java.lang", "java.base/java.util", "java.base/java.net")
"""Packages that Hadoop's web servers look into."""


@contextmanager
def open_yarn(*, memory_mb: int = 4096) -> Iterator[Yarn]:
    """Start YARN with this much memory for containers.

    Raises:
        ServiceUnavailable: There is no PySpark, no JDK, or Maven could not get Hadoop's jars.
    """
    jars = find_jars("hadoop")
    with temporary_home("yarn") as home:
        try:
            installation = find_installation(home)
        except SubmitFailed as absent:
            raise ServiceUnavailable(str(absent)) from absent
        yarn = Yarn(installation, jars, home, memory_mb=memory_mb)
        with running(yarn):
            yield yarn


class Yarn:
    """The cluster, which keeps its ports, and nothing else, over `kill` and `start`.

    Attributes:
        folder: What `YARN_CONF_DIR` is set to.
        url: The address of the resource manager's REST API.
        spark_home: The Spark whose jars the containers use.
    """

    def __init__(
        self, installation: Installation, jars: Path, home: Path, *, memory_mb: int
    ) -> None:
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.spark_home = installation.spark_home
        self.folder = home / "conf"
        self.folder.mkdir()
        self.url = f"http://127.0.0.1:{ports[_WEB]}"
        self._site = self.folder / "yarn-site.xml"
        work = home / "work"
        work.mkdir()
        settings = {
            **{key: f"127.0.0.1:{port}" for key, port in ports.items()},
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.minicluster.fixed.ports": "true",
            "yarn.minicluster.use-rpc": "true",
            "yarn.minicluster.yarn.nodemanager.resource.memory-mb": memory_mb,
            "yarn.nodemanager.resource.memory-mb": memory_mb,
            "yarn.nodemanager.resource.cpu-vcores": 8,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
            "yarn.nodemanager.delete.debug-delay-sec": 600,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": 1.0,
        }
        classpath = f"{jars}/*:{installation.spark_home}/jars/*"
        self.daemon = Daemon(
            "yarn",
            [
                "/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", work,
                find_java(), "-Xmx600m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
                "-cp", classpath, _MAIN, self._site,
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            log=home / "yarn.log",
            ready=self._is_ready,
            env={"JAVA_HOME": str(installation.java_home)},
        )  # fmt: skip

    def start(self) -> None:
        # Its two web servers start slowly on a busy machine.
        self.daemon.start(within_s=240)

    def kill(self) -> None:
        self.daemon.kill()

    def ask(self, path: str) -> Any:
        """Return what the resource manager's REST API has at this path."""
        with urlopen(f"{self.url}/ws/v1/cluster/{path}", timeout=10) as answer:
            return json.load(answer)

    def _is_ready(self) -> bool:
        if not self._site.exists():
            return False
        try:
            return bool(self.ask("metrics")["clusterMetrics"]["activeNodes"] == 1)
        except (OSError, ValueError):
            return False
