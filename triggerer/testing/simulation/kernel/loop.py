"""An asyncio event loop with virtual time, without I/O and without threads. The seed makes every choice."""

from __future__ import annotations

import asyncio
import heapq
import random
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from typing import Any, TypeVarTuple, cast
from weakref import WeakKeyDictionary

_Ts = TypeVarTuple("_Ts")

_CPU_TIME = 0.002
"""The most virtual seconds that the callbacks of a turn take together. Without this time, no timer would become due
while there is work."""


class Deadlock(Exception):
    """No callback is ready, and there is no timer."""


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number, and not its address.

    anyio cancels the tasks of a set in the order of the set, which depends on the hashes. Each replay of a seed needs
    the same order.
    """

    def __init__(self, number: int, coro: Any, **kwargs: Any) -> None:
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order that asyncio promises: the first to become ready runs first.

    Random choices of the seed decide the order of timers with equal deadlines, and the time that passes while callbacks
    run. `on_step` is called before each callback. If `on_step` raises an error, the loop stops.
    """

    def __init__(self, rng: random.Random, now: float, on_step: Callable[[], None]) -> None:
        # Set before the base class's constructor, which reads it.
        self._is_running = False
        super().__init__()
        self.now = now
        self.passed = 0.0
        """The seconds that `pass_time` added to `now`."""
        self.on_step: Callable[[], None] | None = on_step
        self._rng = rng
        self._callbacks: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._is_stopping = False
        # The open generators, in the order of their start. Each replay of a seed closes them in this order.
        self._generators: WeakKeyDictionary[AsyncGenerator[Any, Any], None] = WeakKeyDictionary()
        self.set_task_factory(cast("Any", self._make_task))

    def _make_task(self, loop: VirtualLoop, coro: Any, **kwargs: Any) -> _Task:
        self._numbers += 1
        return _Task(self._numbers, coro, loop=loop, **kwargs)

    def time(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """Let time pass while nothing runs, so that timers run late."""
        self.now += seconds
        self.passed += seconds

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._callbacks.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._rng.random(), self._numbers, timer))
        return timer

    def next_due(self) -> float | None:
        """Return the time of the next callback, or None if only a call from outside can schedule one."""
        if self._callbacks:
            return self.now
        while self._timers and self._timers[0][3].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def is_running(self) -> bool:
        return self._is_running

    def stop(self) -> None:
        self._is_stopping = True

    def run_forever(self) -> None:
        """Run turns of the loop until a callback has called `stop`, or a step raises.

        Raises:
            Deadlock: No callback is ready, and there is no timer.
        """
        hooks = sys.get_asyncgen_hooks()
        self._is_running = True
        asyncio._set_running_loop(self)  # noqa: SLF001  (exported for authors of event loops)
        sys.set_asyncgen_hooks(firstiter=self._record_generator, finalizer=self._finalize_generator)
        try:
            while True:
                self._turn()
                if self._is_stopping:
                    break
        finally:
            self._is_running = self._is_stopping = False
            asyncio._set_running_loop(None)  # noqa: SLF001
            sys.set_asyncgen_hooks(*hooks)

    def _record_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[generator] = None

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.pop(generator, None)
        if not self.is_closed():
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Close the open generators, in the order of their start."""
        generators = list(self._generators)
        self._generators.clear()
        if generators:
            # The generators belong to a process that has ended, so their errors do not matter.
            await asyncio.gather(*[one.aclose() for one in generators], return_exceptions=True)

    def _turn(self) -> None:
        """Run the callbacks that are ready at the start of the turn, and the timers that are due."""
        timers, callbacks = self._timers, self._callbacks
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        self.now += self._rng.random() * _CPU_TIME
        if not callbacks:
            if not timers:
                raise Deadlock
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            callbacks.append(heapq.heappop(timers)[3])
        for _ in range(len(callbacks)):
            handle = callbacks[0]
            if not handle.cancelled():
                if self.on_step is not None:
                    self.on_step()
                callbacks.popleft()
                handle._run()  # noqa: SLF001  (only an event loop may call it)
            else:
                callbacks.popleft()


class LoopClock:
    """Implements `triggerer.streams.Clock` on the running loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.now

    async def sleep_until(self, deadline: float) -> None:
        await asyncio.sleep(max(0.0, deadline - self._loop.now))
