"""Google's in-memory Pub/Sub (pstest) as a process on loopback, built from tests/services/brokers/pubsub with Go."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.services.brokers.pubsub_admin import PubSubAdmin
from tests.services.process import (
    Daemon,
    accepts_connections,
    free_ports,
    running,
    temporary_home,
)
from tests.services.programs.go_program import find_built, find_go, run_go

_SOURCE = Path(__file__).with_name("pubsub")
_BUILD_TIMEOUT_S = 600


@contextmanager
def open_pubsub(
    *, stream_lifetime_s: float = 0, is_optimized: bool = False
) -> Iterator[PubSubServer]:
    """Start a server without topics. It keeps everything in memory, so a stop loses everything.

    Args:
        stream_lifetime_s: After this time the server ends each stream, as Google's service does; 0: never.
        is_optimized: True for measurements. The build of an optimized server takes a third more processor time.
    Raises:
        ServiceUnavailable: Go is not installed, or could not build the server.
    """
    binary = _find_server(is_optimized=is_optimized)
    with temporary_home("pubsub") as home:
        server = PubSubServer(binary, home / "log", stream_lifetime_s)
        with running(server.daemon):
            try:
                yield server
            finally:
                server.close()


@contextmanager
def open_pubsub_flood(size_bytes: int) -> Iterator[str]:
    """Start a server that sends messages of this size as fast as they are acknowledged; yield its address.

    Benchmarks of clients use this server. A subscription whose name ends with `-<number>` gets that
    number of messages. No message is redelivered.

    Raises:
        ServiceUnavailable: There is no Go, or it could not build the server.
    """
    binary = _find_server(is_optimized=True)
    (port,) = free_ports(1)
    with temporary_home("pubsub") as home:
        daemon = Daemon(
            "pubsub-flood",
            [binary, "-port", str(port), "-flood", str(size_bytes)],
            log=home / "log",
            ready=lambda: accepts_connections(port),
        )
        with running(daemon):
            yield f"127.0.0.1:{port}"


@cache
def _find_server(*, is_optimized: bool) -> Path:
    go = find_go("Pub/Sub")
    options = [] if is_optimized else ["-gcflags=all=-N -l", "-ldflags=-s -w"]
    content = " ".join(options).encode()
    content += b"".join(path.read_bytes() for path in sorted(_SOURCE.iterdir()))
    version = subprocess.run([go, "version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(content + version).hexdigest()[:12]
    command = [go, "build", "-buildvcs=false", *options, "-o"]

    def build(target: Path) -> None:
        run_go("Pub/Sub", [*command, str(target), "."], timeout_s=_BUILD_TIMEOUT_S, cwd=_SOURCE)

    return find_built(f"pubsub-{digest}", build)


class PubSubServer(PubSubAdmin):
    """A running server. A restart keeps the port, but loses all topics and messages."""

    def __init__(self, binary: Path, log: Path, stream_lifetime_s: float) -> None:
        self.port, self._inspect_port = free_ports(2)
        super().__init__(f"127.0.0.1:{self.port}")
        self.daemon = Daemon(
            "pubsub",
            [
                binary,
                *("-port", str(self.port)),
                *("-inspect", str(self._inspect_port)),
                *("-stream-lifetime", f"{stream_lifetime_s}s"),
            ],
            log=log,
            ready=lambda: (
                accepts_connections(self.port) and accepts_connections(self._inspect_port)
            ),
        )

    def inspect(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the server's record of these messages: `Acks`, `Deliveries`, `Modacks`."""
        if not ids:
            return []
        query = "&".join(f"id={one}" for one in ids)
        with urlopen(f"http://127.0.0.1:{self._inspect_port}/messages?{query}", timeout=30) as got:
            found: list[dict[str, Any]] = json.load(got)
        return found

    def acked(self, ids: Sequence[str]) -> int:
        """How many of these messages were acknowledged."""
        return sum(one["Acks"] > 0 for one in self.inspect(ids))
