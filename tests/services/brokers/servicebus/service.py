"""Starts the server's process, and sends it the orders of tests."""

from __future__ import annotations

import base64
import json
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.brokers.servicebus.claims import KEY, KEY_NAME
from tests.services.process import Daemon, ServiceUnavailable, accepts_connections, free_ports

_ROOT = Path(__file__).parents[4]


@dataclass
class ServiceBusServer:
    """A running test Service Bus. Over a restart, only a durable one keeps its entities and messages."""

    daemon: Daemon
    port: int
    control_port: int

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    def order(self, do: str, **arguments: Any) -> Any:
        """Send the server an order (see `control`), and return the answer."""
        with socket.create_connection(("127.0.0.1", self.control_port), timeout=30) as connection:
            connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer = json.loads(answers.readline())
        if "error" in answer:
            raise RuntimeError(f"{do}: {answer['error']}")
        return answer["answer"]

    def restart(self) -> None:
        """Stop the server, which ends all connections and locks, and start it again."""
        self.daemon.stop()
        self.daemon.start()

    def create(self, path: str, **settings: Any) -> str:
        self.order("create", path=path, **settings)
        return path

    def send(self, path: str, values: Sequence[str | bytes], **properties: Any) -> list[int]:
        """Send one message for each value; return the sequence numbers."""
        encoded = [
            base64.b64encode(one.encode() if isinstance(one, str) else one).decode()
            for one in values
        ]
        numbers: list[int] = self.order("send", path=path, values=encoded, **properties)
        return numbers

    def look(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self.order("look", path=path)
        for message in found["messages"]:
            message["value"] = base64.b64decode(message["value"]).decode()
        return found

    def values(self, path: str) -> list[str]:
        """Return the values of the messages in an entity, locked or not."""
        return [message["value"] for message in self.look(path)["messages"]]

    def dead_letters(self, path: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.look(f"{path}/$deadletterqueue")["messages"]
        return messages

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.order("stats")
        return stats


def connection_string(port: int, *, key: str = KEY) -> str:
    return (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true"
    )


@contextmanager
def open_servicebus(*, durable: bool = False) -> Iterator[ServiceBusServer]:
    """Start a test Service Bus on free ports, and kill it at the end of the block.

    Args:
        durable: Whether `restart` keeps the entities and their messages.
    Raises:
        ServiceUnavailable: Qpid Proton is not installed.
    """
    try:
        import proton  # noqa: F401
    except ImportError as error:
        raise ServiceUnavailable(
            f"the test Service Bus needs python-qpid-proton: {error}"
        ) from error
    with tempfile.TemporaryDirectory(prefix="servicebus-") as folder:
        port, control_port = free_ports(2)
        daemon = Daemon(
            f"servicebus-{port}",
            [
                sys.executable, "-m", "tests.services.brokers.servicebus.server",
                str(port), str(control_port), *([str(Path(folder) / "kept")] if durable else []),
            ],
            log=Path(folder) / "servicebus.log",
            ready=lambda: accepts_connections(control_port) and accepts_connections(port),
            env={"PYTHONPATH": str(_ROOT)},
        )  # fmt: skip
        daemon.start()
        try:
            yield ServiceBusServer(daemon, port, control_port)
        finally:
            daemon.kill()
