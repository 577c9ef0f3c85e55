"""Finds code that blocks the event loop, and says whose it is."""

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

_log = structlog.get_logger(__name__)

_OWNED: Final = re.compile(r"(?P<kind>watcher|shared-stream[\w-]*)\[(?P<name>.*)\]", re.DOTALL)
_HINT: Final = "[triggerer.isolation] can move it to a thread or a process of its own"
_DEEPEST: Final = 40
_JOIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Stall:
    """The event loop has not turned for `seconds`, and this is what it was seen to do."""

    task: str | None
    """The name of the task that ran; None where a callback did."""
    trigger: str | None
    """The watchers of the trigger whose code the task runs."""
    stream: str | None
    """The key of the stream whose producer's code the task runs."""
    stack: str
    """Of the loop's thread, the innermost call last."""
    seconds: float
    is_computing: bool | None
    """Whether the thread used the processor, or waited; None where the system does not tell."""


class StallSink(Protocol):
    """What becomes of a stall. Called from the watching thread."""

    def began(self, stall: Stall) -> None: ...

    def ended(self, stall: Stall, seconds: float) -> None:
        """The loop turns again, after `seconds` in all."""


class LogStalls:
    """Writes both ends of a stall into the log."""

    def began(self, stall: Stall) -> None:
        doing = {True: "computing", False: "waiting", None: None}[stall.is_computing]
        _log.warning(
            "the event loop stands still",
            **_who(stall),
            **({"doing": doing} if doing else {}),
            seconds=round(stall.seconds, 2),
            stack=stall.stack,
            **({"hint": _HINT} if stall.trigger else {}),
        )

    def ended(self, stall: Stall, seconds: float) -> None:
        _log.warning("the event loop turns again", **_who(stall), seconds=round(seconds, 2))


def _who(stall: Stall) -> dict[str, Any]:
    fields = {"trigger": stall.trigger, "stream": stall.stream}
    return {name: value for name, value in fields.items() if value} or {"task": stall.task}


class StallWatch:
    """Watches the running event loop from a thread, for as long as the `with` block lasts.

    A stall is reported when the loop has given no sign of life for `threshold` seconds after it was asked for one; it
    is asked every half of that. So one that is shorter is never reported, and one that is longer by half always is.
    `seconds` count from the question: up to half a threshold may have passed before.
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
        # In this order: the watcher, which clears before it looks, cannot miss both.
        self._stopped.set()
        self._answered.set()
        self._watcher.join(_JOIN_S)

    def _watch(self) -> None:
        while True:
            due, before = time.monotonic() + self._threshold / 2, self._usage()
            if self._stopped.wait(self._threshold / 2):
                return
            self._answered.clear()
            if self._stopped.is_set():
                return
            # Woken late, we waited for the interpreter's lock: who held it has only just let go.
            is_late = time.monotonic() - due > self._threshold
            stall = self._look(due, before) if is_late else None
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            if stall is None:
                if self._answered.wait(self._threshold):
                    continue
                stall = self._look(due, before)
            if stall is not None:
                self._sink.began(stall)
            self._answered.wait()
            if stall is not None and not self._stopped.is_set():
                self._sink.ended(stall, time.monotonic() - due)

    def _look(self, since: float, before: Usage) -> Stall | None:
        """What the loop does now; None if it turns after all, or was not given the processor."""
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001  (documented, for this)
        if frame is None or self._answered.is_set():
            return None
        seconds = time.monotonic() - since
        now = self._usage()
        is_computing = _is_most(before.computing, now.computing, seconds)
        if _is_most(before.queueing, now.queueing, seconds):
            # The machine is overloaded, and this code only happened to be next.
            return None
        if seconds > 1.5 * self._threshold and not is_computing:
            # We came late ourselves, and nobody held the interpreter's lock: the process was stopped.
            return None
        name, kind, owner = _owner_of(task)
        return Stall(
            task=name,
            trigger=owner if kind == "watcher" else None,
            stream=owner if kind != "watcher" else None,
            stack=_shown(frame),
            seconds=seconds,
            is_computing=is_computing,
        )


class Usage(NamedTuple):
    """What a thread has used of the processors, in seconds; None where the system does not tell."""

    computing: float | None
    queueing: float | None
    """Ready to run, with none free."""


def usage_of(thread: int, native: int) -> Callable[[], Usage]:
    """Return how to measure a thread of this process, by its identifier and by the system's."""
    clock = getattr(time, "pthread_getcpuclockid", lambda _: None)(thread)
    # Linux: nanoseconds computed, nanoseconds queued, turns.
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
    """The task's name, and for whom it works: the kind and the name."""
    if task is None:
        return None, None, None
    name = task.get_name()
    if named := _OWNED.fullmatch(name):
        return name, named["kind"], named["name"]
    # A task that a filter started inherits the filter's context; before Python 3.12 nobody can ask for it.
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
    """Give the current task another name, for synchronous code that works for somebody in particular."""

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
