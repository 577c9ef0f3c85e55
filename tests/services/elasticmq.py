"""ElasticMQ, a queue service that speaks the API of SQS, on a free loopback port."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.services.java_program import JavaProgram, find_program
from tests.services.process import Daemon, accepts_connections, free_ports, running, temporary_home
from tests.services.sqs_client import SqsClient

_CONFIGURATION = """\
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
generate-node-address = false
aws {{ region = {region}, accountId = "000000000000" }}
"""
_STORAGE = """\
messages-storage {{ enabled = true, uri = "jdbc:h2:{home}/messages;WRITE_DELAY=0", driver-class = "org.h2.Driver" }}
"""


@contextmanager
def open_elasticmq(*, durable: bool = False, heap: str = "256m") -> Iterator["ElasticMqServer"]:
    """Start a server, and remove it and what it stored at the end.

    Args:
        durable: Whether it keeps queues and messages when it is stopped. It stores them after it has answered, so a
            kill may lose the last ones.

    Raises:
        ServiceUnavailable: There is no Java 17, or no server in the cache and no way to get it.
    """
    with _one_server(_with_archive(), durable, heap) as server:
        yield server


@contextmanager
def _one_server(program: JavaProgram, durable: bool, heap: str) -> Iterator["ElasticMqServer"]:
    with temporary_home("elasticmq") as home:
        server = ElasticMqServer(program, home, durable=durable, heap=heap)
        with running(server):
            yield server


@cache
def _with_archive() -> JavaProgram:
    return find_program("elasticmq").with_archive(_train)


def _train(program: JavaProgram) -> None:
    with _one_server(program, True, "256m") as server:
        server.create_queue("training")
        server.stop()


class ElasticMqServer(SqsClient):
    """One server. Its port stays the same over `stop`, `kill` and `start`; if it is durable, its messages do too."""

    def __init__(self, program: JavaProgram, home: Path, *, durable: bool, heap: str) -> None:
        (self.port,) = free_ports(1)
        super().__init__(f"http://127.0.0.1:{self.port}")
        configuration = home / "elasticmq.conf"
        text = _CONFIGURATION.format(port=self.port, region=self.region)
        configuration.write_text(text + (_STORAGE.format(home=home) if durable else ""))
        # A property, not an argument: it stands before the main class.
        command = program.command(heap, "org.elasticmq.server.Main")
        command.insert(1, f"-Dconfig.file={configuration}")
        self.daemon = Daemon(
            "elasticmq",
            command,
            log=home / "server.log",
            ready=self._is_ready,
        )
        self._kept = set[str]() if durable else None
        """The queues that are there again after a start."""

    def _is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        # It answers before it has read which queues it had: those are unknown to it for a tenth of a second.
        return not self._kept or self._kept <= self.queue_names()

    def create_queue(self, name: str, **options: Any) -> str:
        url = super().create_queue(name, **options)
        if self._kept is not None:
            self._kept.add(name)
        return url

    def delete_queue(self, url: str) -> None:
        super().delete_queue(url)
        if self._kept is not None:
            self._kept.discard(url.rpartition("/")[2])

    def start(self) -> None:
        """Start it on its port and data, and wait until it serves."""
        self.daemon.start()

    def stop(self) -> None:
        """Shut down properly."""
        self.daemon.stop()

    def kill(self) -> None:
        """Kill -9 the server."""
        self.daemon.kill()
