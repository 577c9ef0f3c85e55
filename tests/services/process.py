"""Server processes that tests can start, stop, kill and start again.

All methods are synchronous, because a server outlives the event loop of the test that started it. An async test whose
event loop must not block calls `await asyncio.to_thread(server.stop)`.
"""

import asyncio
import os
import pwd
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import psutil

T = TypeVar("T")


class ServiceUnavailable(Exception):
    """This machine lacks something that the service needs. The message names it. Tests are skipped, or fail."""


class ServiceError(Exception):
    """The service is installed, but did not work as asked. The message contains the end of its log or output."""


def free_ports(count: int) -> list[int]:
    """Return `count` free ports below the ports that the system uses for outgoing connections.

    Otherwise an outgoing connection could take the port of a server that is stopped for a while.
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ServiceError(f"no {count} free ports between 20000 and 32000")


def accepts_connections(port: int) -> bool:
    """Whether something listens on this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread with an event loop of its own. An async test may call this, too."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class Daemon:
    """A command that runs until it is stopped, with its output in a log file.

    If this process dies, a shell at the other end of a pipe kills the command. A parent-death signal would come too
    early: the kernel sends it when the *thread* that started the command ends.

    Args:
        ready: Says whether the command is ready. Called every 50 ms after a start; must not raise.
        user: The account that runs the command; None: the account of this process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(part) for part in command]
        self._ready = ready
        self._env = None if env is None else {**os.environ, **env}
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServiceError(f"{self.name} is not running")
        return self._process.pid

    def start(self, *, within_s: float = 60) -> None:
        """Start the command, and wait until it is ready. Does nothing if the command already runs.

        Raises:
            ServiceError: The command ended, or was not ready in time. It does not run afterwards.
        """
        if self.running:
            return
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
                **as_user(self._user),
            )
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -KILL "$1"', "reaper", str(process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + within_s
        while not self._ready():
            if process.poll() is not None:
                self.kill()
                raise ServiceError(
                    f"{self.name} ended with {process.returncode} at its start:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise ServiceError(f"{self.name} not ready in {within_s} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self, with_signal: int = signal.SIGTERM, *, within_s: float = 60) -> None:
        """Send the command a signal, and wait until it ends. Does nothing if the command does not run.

        Raises:
            ServiceError: The command did not end in time, and was killed.
        """
        if self._process is None:
            return
        self._process.send_signal(with_signal)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServiceError(
                f"{self.name} did not stop in {within_s} s and was killed:\n{self.log_tail()}"
            ) from None
        self._forget()

    def kill(self) -> None:
        """Kill the command and its children with SIGKILL, and wait until they have ended."""
        if self._process is None:
            return
        try:
            family = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self._process.kill()
        for child in family:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()
        still_alive(family, within_s=30)
        self._forget()

    def log_tail(self, lines: int = 12) -> str:
        """The end of its output."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _forget(self) -> None:
        self._process = None
        if self._reaper is not None:
            # End the shell before another process can get the id that the shell would kill.
            self._reaper.kill()
            self._reaper.communicate()
            self._reaper = None


class Server(Protocol):
    """One or several processes that can be started, and can be killed at any time, such as a `Daemon`."""

    def start(self) -> None: ...
    def kill(self) -> None: ...


@contextmanager
def running(server: Server) -> Iterator[None]:
    """Start the server, and kill it at the end of the block."""
    try:
        server.start()
        yield
    finally:
        server.kill()


@contextmanager
def temporary_home(name: str) -> Iterator[Path]:
    """Make a folder for the data of a service, and remove it at the end of the block."""
    with TemporaryDirectory(prefix=f"triggerer-{name}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def still_alive(processes: Iterable[psutil.Process], *, within_s: float) -> list[psutil.Process]:
    """Return the processes that have not ended in this time. Returns early once all have ended.

    A zombie counts as ended.
    """
    deadline = time.monotonic() + within_s
    alive = list(processes)
    while alive := [process for process in alive if is_alive(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return alive


def lives(pid: int) -> bool:
    """Return whether a process with this id exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process has not ended. It may end, and vanish, during this call."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def as_user(name: str | None) -> dict[str, Any]:
    """Return the arguments with which `subprocess` runs a command as this user; empty if `name` is None."""
    if name is None:
        return {}
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
