"""Hadoop's YARN: a resource manager and one node manager, on free loopback ports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen
from xml.etree import ElementTree as ET

from tests.services.process import Daemon, ServiceUnavailable, free_ports, running, temporary_home
from tests.services.programs.java import find_java
from tests.services.programs.java_program import find_jars
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.classic import Installation, find_installation

_SERVER: Final = "org.apache.hadoop.yarn.server"
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
_LOG4J: Final = """\
log4j.rootLogger = WARN, console
log4j.appender.console = org.apache.log4j.ConsoleAppender
log4j.appender.console.layout = org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern = %d{ISO8601} %p %c{1}: %m%n
"""
_OPENED: Final = ("java.base/java.lang", "java.base/java.util", "java.base/java.net")
"""Java packages that Hadoop's web servers access by reflection, so Java must open them."""


@contextmanager
def open_yarn(*, memory_mb: int = 4096) -> Iterator[Yarn]:
    """Start YARN with this much memory for containers.

    Raises:
        ServiceUnavailable: There is no PySpark or no Java, or Maven could not get Hadoop's jars.
    """
    jars = find_jars("yarn")
    with temporary_home("yarn") as home:
        try:
            installation = find_installation(home)
        except SubmitFailed as absent:
            raise ServiceUnavailable(str(absent)) from absent
        yarn = Yarn(installation, jars, home, memory_mb=memory_mb)
        with running(yarn):
            yield yarn


class Yarn:
    """A YARN cluster. After `kill` and `start`, its managers have the same ports, but have forgotten all applications.

    The managers are two processes, because in one process their web pages would replace each other.

    Attributes:
        folder: The value for `YARN_CONF_DIR`.
        url: The address of the resource manager's REST API.
        spark_home: The Spark whose jars the containers use.
        daemon: The process of the resource manager.
        node: The process of the node manager, whose children are the containers.
    """

    def __init__(
        self, installation: Installation, jars: Path, home: Path, *, memory_mb: int
    ) -> None:
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.spark_home = installation.spark_home
        self.url = f"http://127.0.0.1:{ports[_WEB]}"
        self.folder = home / "conf"
        self.folder.mkdir()
        addresses = {key: f"127.0.0.1:{port}" for key, port in ports.items()}
        _write_site(self.folder / "yarn-site.xml", addresses | _settings(home, memory_mb))
        (self.folder / "log4j.properties").write_text(_LOG4J)
        self._home = home
        self._java_home = installation.java_home
        self._classpath = f"{self.folder}:{jars}/*"
        self.daemon = self._manager("resourcemanager.ResourceManager", ready=self._answers)
        self.node = self._manager("nodemanager.NodeManager", ready=self._has_node)

    def start(self) -> None:
        # On a busy machine, the web servers start slowly, so wait longer than by default.
        for manager in (self.daemon, self.node):
            manager.start(within_s=180)

    def kill(self) -> None:
        """Kill both managers, and the containers of the node manager."""
        for manager in (self.node, self.daemon):
            manager.kill()

    def ask(self, path: str) -> Any:
        """Return what the resource manager's REST API has at this path."""
        with urlopen(f"{self.url}/ws/v1/cluster/{path}", timeout=10) as answer:
            return json.load(answer)

    def _manager(self, name: str, *, ready: Callable[[], bool]) -> Daemon:
        kind = name.partition(".")[0]
        return Daemon(
            f"yarn-{kind}",
            [
                find_java(), "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
                "-cp", self._classpath, f"{_SERVER}.{name}",
            ],
            log=self._home / f"{kind}.log",
            ready=ready,
            env={"JAVA_HOME": str(self._java_home)},
        )  # fmt: skip

    def _answers(self) -> bool:
        try:
            return bool(self.ask("info"))
        except (OSError, ValueError):
            return False

    def _has_node(self) -> bool:
        return bool(self.ask("metrics")["clusterMetrics"]["activeNodes"] == 1)


def _settings(home: Path, memory_mb: int) -> dict[str, str]:
    return {
        "hadoop.tmp.dir": str(home / "tmp"),
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.local-dirs": str(home / "local"),
        "yarn.nodemanager.log-dirs": str(home / "logs"),
        "yarn.nodemanager.resource.memory-mb": str(memory_mb),
        "yarn.nodemanager.resource.cpu-vcores": "8",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.nodemanager.delete.debug-delay-sec": "600",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    }


def _write_site(file: Path, settings: dict[str, str]) -> None:
    root = ET.Element("configuration")
    for key, text in settings.items():
        one = ET.SubElement(root, "property")
        ET.SubElement(one, "name").text = key
        ET.SubElement(one, "value").text = text
    ET.ElementTree(root).write(file)
