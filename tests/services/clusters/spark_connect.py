"""A Spark Connect server with a JVM of its own, on a free loopback port."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.services.process import Daemon, ServiceUnavailable, free_ports, running, temporary_home
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.classic import Installation, find_installation
from triggerer.worker.spark.sessions.reachability import Endpoint, is_reachable

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def open_connect_server(*, cores: int = 2, has_page: bool = False) -> Iterator[ConnectServer]:
    """Start a server whose tasks run in its own JVM, on this number of cores.

    Args:
        has_page: True: serve Spark's web UI, which `running_jobs` reads.
    Raises:
        ServiceUnavailable: There is no PySpark, or no Java for it.
    """
    with temporary_home("spark-connect") as home:
        try:
            installation = find_installation(home)
        except SubmitFailed as absent:
            raise ServiceUnavailable(str(absent)) from absent
        server = ConnectServer(installation, home, cores=cores, has_page=has_page)
        with running(server):
            yield server


class ConnectServer:
    """The server, which keeps its port over `kill` and `start`.

    Attributes:
        remote: The value for `[spark] remote`.
    """

    def __init__(
        self, installation: Installation, home: Path, *, cores: int, has_page: bool
    ) -> None:
        port, self._page = free_ports(2)
        self.remote = f"sc://127.0.0.1:{port}"
        endpoint = Endpoint("127.0.0.1", port)
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
            "spark.ui.enabled": str(has_page).lower(),
            "spark.ui.port": self._page,
            "spark.sql.warehouse.dir": home / "warehouse",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        self.daemon = Daemon(
            "spark-connect",
            [
                str(installation.spark_home / "bin" / "spark-submit"),
                "--class", _SERVER, "--master", f"local[{cores}]", *map(str, options),
                "spark-internal",
            ],
            log=home / "server.log",
            ready=lambda: is_reachable(endpoint),
            env={
                "JAVA_HOME": str(installation.java_home),
                "SPARK_HOME": str(installation.spark_home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
            },
        )  # fmt: skip

    def running_jobs(self) -> list[Any]:
        """Return the jobs that run now, as Spark's page describes them."""
        root = f"http://127.0.0.1:{self._page}/api/v1/applications"
        with urlopen(root, timeout=30) as answer:
            (application,) = json.load(answer)
        with urlopen(f"{root}/{application['id']}/jobs?status=running", timeout=30) as answer:
            found: list[Any] = json.load(answer)
        return found

    def start(self) -> None:
        self.daemon.start()

    def kill(self) -> None:
        self.daemon.kill()
