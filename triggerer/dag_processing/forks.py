"""Reads each file in a fork of its own, so that nothing the file does outlasts the fork."""

from __future__ import annotations

import faulthandler
import math
import os
import re
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from triggerer.dag_processing.orphans import Orphan, Orphans, adopt_orphans
from triggerer.processes.lifelines import die_with_writer
from triggerer.processes.signals import signal_name

# Only the last 64 KiB of a fork's output are kept, enough for a long traceback. A file may print without limit.
OUTPUT_LIMIT: Final = 64 * 1024
_CHUNK_BYTES: Final = 64 * 1024
# The most bytes of JSON that a fork may return. They must fit into one frame of `triggerer.processes.ipc`.
RESULT_LIMIT: Final = 64 * 1024 * 1024
# The time that a fork has, after its timeout, to write its stack.
_LAST_WORDS_S: Final = 0.3
NOT_NOW: Final = 75
"""The exit code of a parser that cannot fork at present: `EX_TEMPFAIL` of sysexits.h."""
# How long closing waits for killed processes to end.
_CLOSE_S: Final = 1.0


@dataclass(slots=True)
class Ended:
    """How a fork ended."""

    path: str
    result: Any
    """The function's return value; None if it failed."""
    output: str
    """The end of the fork's output."""
    seconds: float
    failure: str | None
    """The reason why there is no result."""


@dataclass(slots=True)
class _Fork:
    path: str
    pid: int
    pidfd: int
    result_fd: int
    output_fd: int
    lifeline: int
    """The writing end of the fork's lifeline: if this process ends, the kernel kills the fork."""
    started: float
    timeout_s: float
    deadline: float
    timed_out: bool = False
    result: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)


class ForkPool:
    """Calls `function(path)` for several paths at once, each call in a fork of its own.

    The calling process must have a single thread, and no other children, because the pool kills unknown children. When
    a fork ends, its descendants are killed, even detached ones if the kernel allows it (`adopt_orphans`).

    Args:
        function: Its return value must be JSON.
        begin: Called for each path before the path's fork starts.
        timeout_s: A fork that takes longer is killed.
    """

    def __init__(
        self,
        function: Callable[[str], Any],
        begin: Callable[[str], None],
        *,
        timeout_s: float,
        at_once: int,
    ) -> None:
        self._function = function
        self._begin = begin
        self._timeout_s = timeout_s
        self._at_once = at_once
        self._waiting: dict[str, None] = {}
        self._running: dict[str, _Fork] = {}
        self._selector = selectors.DefaultSelector()
        self._orphans = Orphans(self._selector)
        self._watched: list[int] = []
        adopt_orphans()

    def watch(self, fd: int) -> None:
        """Let `step` also return when `fd` can be read. Forks do not inherit `fd`."""
        self._selector.register(fd, selectors.EVENT_READ, None)
        self._watched.append(fd)

    def add(self, path: str) -> None:
        """Call the function for this path as soon as fewer than `at_once` forks run.

        A running fork for this path is killed, because its result would come from an older version of the file.
        """
        if (fork := self._running.pop(path, None)) is not None:
            _kill(fork)
            self._finish(fork)
        self._waiting[path] = None

    def step(self) -> tuple[list[Ended], bool]:
        """Start forks for waiting paths. Then wait until a fork writes, ends or times out, or a watched fd is readable.

        A fork that exceeds its time is killed.

        Returns:
            The forks that have ended, and whether a descriptor that was given to `watch` can be read.
        """
        for path in list(self._waiting)[: self._at_once - len(self._running)]:
            del self._waiting[path]
            others = [fork.lifeline for fork in self._running.values()]
            not_theirs = [*others, *self._watched]
            self._begin(path)
            fork = self._running[path] = _start(path, self._function, self._timeout_s, not_theirs)
            for fd in (fork.pidfd, fork.result_fd, fork.output_fd):
                self._selector.register(fd, selectors.EVENT_READ, fork)
        soonest = min((fork.deadline for fork in self._running.values()), default=math.inf)
        wait = None if soonest == math.inf else max(0.0, soonest - time.monotonic())
        ended, readable = [], False
        for key, _ in self._selector.select(wait):
            fork = key.data
            if fork is None:
                readable = True
            elif isinstance(fork, Orphan):
                self._orphans.reap(fork, self._pids())
            elif self._running.get(fork.path) is not fork:
                continue  # the fork has ended: an earlier key of this loop was its pidfd
            elif key.fd != fork.pidfd:
                if not _read(key.fd, fork):
                    self._selector.unregister(key.fd)
            else:
                del self._running[fork.path]
                ended.append(self._finish(fork))
        now = time.monotonic()
        for fork in self._running.values():
            if fork.deadline <= now:
                fork.timed_out = True
                fork.deadline = math.inf
                _kill(fork)
        return ended, readable

    def close(self) -> None:
        """Kill all running forks."""
        while self._running:
            _, fork = self._running.popitem()
            _kill(fork)
            self._finish(fork)
        for fd in self._watched:
            self._selector.unregister(fd)
        self._orphans.close(_CLOSE_S)
        self._selector.close()

    def _pids(self) -> set[int]:
        return {fork.pid for fork in self._running.values()}

    def _finish(self, fork: _Fork) -> Ended:
        """Wait for the end of a fork that was removed from `_running`, and kill its remaining descendants."""
        ended = _finish(fork, self._selector)
        self._orphans.kill(self._pids())
        return ended


def _start(
    path: str, function: Callable[[str], Any], timeout_s: float, not_its: Sequence[int]
) -> _Fork:
    """Start a fork. It closes the descriptors in `not_its`, such as the lifelines of other forks."""
    result_fd, result_in = os.pipe()
    output_fd, output_in = os.pipe()
    lifeline_out, lifeline = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _be_the_fork(
            path, function, timeout_s, result_in, output_in, lifeline_out, [lifeline, *not_its]
        )
    os.close(result_in)
    os.close(output_in)
    os.close(lifeline_out)
    for fd in (result_fd, output_fd):
        os.set_blocking(fd, False)
    now = time.monotonic()
    return _Fork(
        path=path,
        pid=pid,
        pidfd=os.pidfd_open(pid),
        result_fd=result_fd,
        output_fd=output_fd,
        lifeline=lifeline,
        started=now,
        timeout_s=timeout_s,
        deadline=now + timeout_s + _LAST_WORDS_S,
    )


def _be_the_fork(
    path: str,
    function: Callable[[str], Any],
    timeout_s: float,
    result_in: int,
    output_in: int,
    lifeline: int,
    not_ours: Sequence[int],
) -> None:
    """Run the function and end the process. Never returns: otherwise the fork would execute the parser's code."""
    code = 1
    try:
        # The fork leads a process group. Killing the group also kills the processes that the file has started.
        os.setpgid(0, 0)
        adopt_orphans()
        for fd in not_ours:
            os.close(fd)
        die_with_writer(lifeline)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output_in, 1)
        os.dup2(output_in, 2)
        # faulthandler writes the stack if the fork crashes or hangs.
        faulthandler.enable(file=2)
        faulthandler.dump_traceback_later(timeout_s, file=2)
        body = orjson.dumps(function(path))
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(result_in, "wb") as pipe:
            pipe.write(body)
        code = 0
    except BaseException:  # noqa: BLE001  (the process ends here: its output has the traceback)
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _read(fd: int, fork: _Fork) -> bool:
    """Read the available data; return False at the end of the pipe."""
    try:
        data = os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return True
    _keep(data, fd, fork)
    return bool(data)


def _keep(data: bytes, fd: int, fork: _Fork) -> None:
    if fd == fork.result_fd:
        # Read one byte beyond the limit, to see that the result was too large.
        fork.result += data[: RESULT_LIMIT + 1 - len(fork.result)]
    else:
        fork.output += data
        del fork.output[:-OUTPUT_LIMIT]


def _finish(fork: _Fork, selector: selectors.BaseSelector) -> Ended:
    """Wait for the fork's end, kill its group, read the rest of its pipes, and close them."""
    # WNOWAIT does not reap the fork. So the id of its process group is not reused before the group is killed.
    os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOWAIT)
    _kill(fork)
    _, status = os.waitpid(fork.pid, 0)
    for fd in (fork.result_fd, fork.output_fd):
        with suppress(BlockingIOError):
            while data := os.read(fd, _CHUNK_BYTES):
                _keep(data, fd, fork)
    for fd in (fork.pidfd, fork.result_fd, fork.output_fd):
        with suppress(KeyError):
            selector.unregister(fd)
        os.close(fd)
    os.close(fork.lifeline)
    seconds = time.monotonic() - fork.started
    output = fork.output.decode(errors="replace")
    exit_code = os.waitstatus_to_exitcode(status)
    failure, result = _failure(fork, exit_code), None
    if failure is None:
        if len(fork.result) > RESULT_LIMIT:
            failure = f"what it defines takes more than {RESULT_LIMIT:,} bytes"
        else:
            try:
                result = orjson.loads(fork.result)
            except orjson.JSONDecodeError as error:
                # The file's code has written into the pipe for the result.
                failure = f"importing it left a result that cannot be understood: {error}"
    return Ended(fork.path, result, output, seconds, failure)


def _kill(fork: _Fork) -> None:
    # The fork creates its own process group. It may not have created the group yet, so also kill the fork alone.
    with suppress(ProcessLookupError):
        os.killpg(fork.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(fork.pid, signal.SIGKILL)


def _failure(fork: _Fork, exit_code: int) -> str | None:
    if fork.timed_out:
        return f"it was stopped: importing it took longer than {fork.timeout_s:g} s"
    if exit_code == 0 and fork.result:
        return None
    if exit_code < 0:
        return f"importing it killed its process: {signal_name(-exit_code)}"
    return f"importing it ended its process with exit code {exit_code}"


def line_in(output: str, file: str) -> int | None:
    """Return the innermost line of `file` in the last stack that `faulthandler` wrote."""
    _, found, stack = output.rpartition("(most recent call first):")
    match = re.search(rf'File "{re.escape(file)}", line (\d+)', stack) if found else None
    return int(match[1]) if match else None
