"""Apicurio's schema registry on a free loopback port. It keeps schemas in memory and speaks Confluent's protocol."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.process import Daemon, free_ports, running, temporary_home
from tests.services.programs.java import find_java
from tests.services.programs.java_program import find_unpacked

JAVA = 21


@contextmanager
def open_apicurio(*, heap: str = "512m") -> Iterator["ApicurioServer"]:
    """Start a registry without schemas, and stop it at the end of the block.

    Raises:
        ServiceUnavailable: There is no Java 21, or the registry is not cached and cannot be downloaded.
    """
    java, program = find_java(JAVA), find_unpacked("apicurio")
    with temporary_home("apicurio") as home:
        server = ApicurioServer(java, program, home, heap)
        with running(server.daemon):
            yield server


class ApicurioServer:
    """A registry. `url` is the address for clients that speak Confluent's protocol."""

    def __init__(self, java: Path, program: Path, home: Path, heap: str) -> None:
        port, management = free_ports(2)
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self.daemon = Daemon(
            "apicurio",
            [
                java, f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}",
                "-Dquarkus.management.host=127.0.0.1", f"-Dquarkus.management.port={management}",
                "-jar", program / "quarkus-run.jar",
            ],
            log=home / "server.log",
            ready=self._is_ready,
        )  # fmt: skip

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
