"""Finds code that blocks the event loop, and names the trigger or stream to which it belongs."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

import structlog

from triggerer.abc import current_subscriber
from triggerer.observability.metrics.table import LOOP_STALL_SECONDS, LOOP_STALLS

_log = structlog.get_logger(__name__)

_OWNED: Final = re.compile(r"(?P<kind>watcher|shared-stream[\w-]*)\[(?P<name>.*)\]", re.DOTALL)
_HINT: Final = "[triggerer.isolation] can move the trigger to a thread or process of its own"
_DEEPEST: Final = 40
_JOIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Stall:
    """A blockage of the event loop, and the code that was running."""

    task: str | None
    """The name of the running task; None if a callback was running."""
    trigger: str | None
    """The names of the watchers whose trigger's code the task runs. None: no trigger's code."""
    stream: str | None
    """The key of the stream whose producer's code the task runs. None: no producer's code."""
    stack: str
    """The stack of the loop's thread, innermost call last."""
    seconds: float
    is_computing: bool | None
    """True: the loop's thread used the processor. False: it waited. None: the system does not tell."""


class StallSink(Protocol):
    """Receives stalls. Called from the watching thread."""

    def began(self, stall: Stall) -> None: ...

    def ended(self, stall: Stall, seconds: float) -> None:
        """Report that the loop runs again, after it stood still for `seconds`."""


class LogStalls:
    """Logs the beginning and the end of each stall."""

    def began(self, stall: Stall) -> None:
        doing = {True: "computing", False: "waiting", None: None}[stall.is_computing]
        _log.warning(
            "the event loop stands still",
            **_blocker(stall),
            **({"doing": doing} if doing else {}),
            seconds=round(stall.seconds, 2),
            stack=stall.stack,
            **({"hint": _HINT} if stall.trigger else {}),
        )

    def ended(self, stall: Stall, seconds: float) -> None:
        LOOP_STALLS.add()
        LOOP_STALL_SECONDS.add(seconds)
        _log.warning("the event loop turns again", **_blocker(stall), seconds=round(seconds, 2))


def _blocker(stall: Stall) -> dict[str, Any]:
    fields = {"trigger": stall.trigger, "stream": stall.stream}
    return {name: value for name, value in fields.items() if value} or {"task": stall.task}


class StallWatch:
    """Watches the running event loop from a thread, for as long as the `with` block lasts.

    The thread puts a callback on the loop every `threshold / 2` seconds. If the callback has not run after `threshold`
    seconds, the thread reports a stall, unless the system has paused the loop's thread or the process. A stall of less
    than 1.5 `threshold` may go unnoticed.
    """

    def __init__(self, threshold: float, sink: StallSink | None = None) -> None:
        self._threshold = threshold
        self._sink: Final = sink or LogStalls()
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, name="triggerer-stall-watch", daemon=True
        )

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._usage = usage_of(self._watched, threading.get_native_id())
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Set `_stopped` first. The thread clears `_answered` and then checks `_stopped`. So the thread cannot clear the
        # `_answered` that is set here, and then wait for it.
        self._stopped.set()
        self._answered.set()
        self._watcher.join(_JOIN_S)

    def _watch(self) -> None:
        while True:
            due = since = time.monotonic() + self._threshold / 2
            before = self._usage()
            if self._stopped.wait(self._threshold / 2):
                return
            self._answered.clear()
            if self._stopped.is_set():
                return
            # If this thread woke late, the loop's code probably held the interpreter's lock until now. Read the loop's
            # stack at once, before the loop continues.
            is_late = time.monotonic() - due > self._threshold
            stall = self._find_stall(due, since, before) if is_late else None
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            while stall is None and not self._answered.wait(self._threshold):
                stall = self._find_stall(due, since, before)
                # If there is no stall, the system may have paused the process. Next time, judge only the time from now.
                since, before = time.monotonic(), self._usage()
            if stall is None:
                continue
            self._sink.began(stall)
            self._answered.wait()
            if not self._stopped.is_set():
                self._sink.ended(stall, time.monotonic() - due)

    def _find_stall(self, due: float, since: float, before: Usage) -> Stall | None:
        """Return the stall. None: the loop runs again, or the system had paused the loop's thread or the process.

        Args:
            due: When the callback was due.
            since: The start of the period for which the thread's usage is judged.
            before: The usage at `since`.
        """
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001  (documented, for this)
        if frame is None or self._answered.is_set():
            return None
        clock, now = time.monotonic(), self._usage()
        seconds = clock - since
        is_computing = _is_most(before.computing, now.computing, seconds)
        if _is_most(before.queueing, now.queueing, seconds):
            # The loop's thread mostly waited for a processor: the machine is overloaded. Blame no code.
            return None
        if seconds > 1.5 * self._threshold and not is_computing:
            # The watching thread woke late. The loop's thread did not compute, so it did not hold the interpreter's
            # lock. So the whole process was suspended, or a third thread held the lock. Blame no code of the loop.
            return None
        name, kind, owner = _owner_of(task)
        return Stall(
            task=name,
            trigger=owner if kind == "watcher" else None,
            stream=owner if kind != "watcher" else None,
            stack=_shown(frame),
            seconds=clock - due,
            is_computing=is_computing,
        )


def look_at_loop(loop: asyncio.AbstractEventLoop, thread: int, *, seconds: float) -> Stall:
    """Return a `Stall` with the code that an event loop runs now. Call this from another thread.

    Args:
        thread: The loop's thread.
        seconds: How long the loop has not answered.
    """
    task = asyncio.current_task(loop)
    frame = sys._current_frames().get(thread)  # noqa: SLF001  (documented, for this)
    name, kind, owner = _owner_of(task)
    return Stall(
        task=name,
        trigger=owner if kind == "watcher" else None,
        stream=owner if kind != "watcher" else None,
        stack="" if frame is None else _shown(frame),
        seconds=seconds,
        is_computing=None,
    )


class Usage(NamedTuple):
    """Processor time of a thread, in seconds; None if the system does not tell."""

    computing: float | None
    queueing: float | None
    """The time for which the thread could have run, but no processor was free."""


def usage_of(thread: int, native: int) -> Callable[[], Usage]:
    """Return a function that measures a thread of this process.

    Args:
        thread: Python's identifier of the thread (`threading.get_ident`).
        native: The system's identifier of the thread (`threading.get_native_id`).
    """
    clock = getattr(time, "pthread_getcpuclockid", lambda _: None)(thread)
    # Linux's file `schedstat` has three numbers: nanoseconds on a processor, nanoseconds in the run queue, time slices.
    statistics = Path(f"/proc/self/task/{native}/schedstat")

    def measure() -> Usage:
        computing = None if clock is None else time.clock_gettime(clock)
        try:
            return Usage(computing, int(statistics.read_bytes().split()[1]) / 1e9)
        except (OSError, IndexError, ValueError):
            return Usage(computing, None)

    return measure


def _is_most(before: float | None, after: float | None, seconds: float) -> bool | None:
    return None if before is None or after is None else after - before > seconds / 2


def _owner_of(task: asyncio.Task[Any] | None) -> tuple[str | None, str | None, str | None]:
    """Return the task's name, and the kind (such as `watcher`) and name of the owner of the task's code."""
    if task is None:
        return None, None, None
    name = task.get_name()
    if named := _OWNED.fullmatch(name):
        return name, named["kind"], named["name"]
    # A task started by a filter inherits the filter's context. Before Python 3.12 a task's context cannot be read.
    if sys.version_info >= (3, 12):
        subscriber = task.get_context().get(current_subscriber)
        owner = getattr(subscriber, "name", None)
        if owner is not None:
            return name, "watcher", owner
    return name, None, None


def _shown(frame: FrameType) -> str:
    lines = traceback.format_stack(frame)[-_DEEPEST:]
    return "".join(lines).rstrip()


class named_task:  # noqa: N801  (a context manager, entered for each trigger that is made)
    """Rename the current task while it runs one trigger's synchronous code, so that a stall can be attributed to it."""

    __slots__ = ("_name", "_previous", "_task")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._previous = self._task.get_name()
            self._task.set_name(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.set_name(self._previous)
