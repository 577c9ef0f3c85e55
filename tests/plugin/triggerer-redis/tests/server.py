"""Starts a Redis server for the tests, on a free loopback port. The server keeps everything on disk."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

_PATIENCE_S = 30.0


def find_server() -> str | None:
    return shutil.which("redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and wait until it answers. A server that was started already is left alone."""
        if self._process is not None:
            return
        server = find_server()
        assert server is not None
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    server, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                    "--appendonly", "yes", "--appendfsync", "always", "--dir", str(self.folder),
                    *self._options,
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.client().ping()
                return
            except redis.RedisError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                # The server does not report when it is ready, so ask it again.
                time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the server. SIGKILL ends it as in a crash."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_PATIENCE_S)
            self._process = None

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Suspend the server. It keeps its connections but does not answer, as if the network dropped all packets."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def client(self, db: int = 0) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, db=db)
