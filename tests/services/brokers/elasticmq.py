"""ElasticMQ, a queue service that speaks the API of SQS, on a free loopback port."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.services.brokers.sqs_client import SqsClient
from tests.services.process import Daemon, accepts_connections, free_ports, running, temporary_home
from tests.services.programs.java_program import JavaProgram, find_program

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
    """Start a server. At the end of the block, kill the server and remove its data.

    Args:
        durable: Whether queues and messages survive a stop. The server stores a message after it has answered, so a
            kill may lose the newest messages.

    Raises:
        ServiceUnavailable: There is no Java 17, or ElasticMQ is not cached and cannot be downloaded.
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
    """A server that keeps its port over `stop`, `kill` and `start`. A durable server also keeps its messages."""

    def __init__(self, program: JavaProgram, home: Path, *, durable: bool, heap: str) -> None:
        (self.port,) = free_ports(1)
        super().__init__(f"http://127.0.0.1:{self.port}")
        configuration = home / "elasticmq.conf"
        text = _CONFIGURATION.format(port=self.port, region=self.region)
        configuration.write_text(text + (_STORAGE.format(home=home) if durable else ""))
        # The option is a system property of Java, so it must come before the main class.
        command = program.command(heap, "org.elasticmq.server.Main")
        command.insert(1, f"-Dconfig.file={configuration}")
        self.daemon = Daemon(
            "elasticmq",
            command,
            log=home / "server.log",
            ready=self._is_ready,
        )
        self._kept = set[str]() if durable else None
        """The names of the queues that the server must have again after a start; None if it is not durable."""

    def _is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        # For a tenth of a second after its start, the server answers but does not know its stored queues.
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
        """Start the server on its port and data, and wait until it has its queues."""
        self.daemon.start()

    def stop(self) -> None:
        """Stop the server in order, and wait until it has ended."""
        self.daemon.stop()

    def kill(self) -> None:
        """Kill -9 the server."""
        self.daemon.kill()
