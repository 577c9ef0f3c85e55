"""Helpers that run a filter in a test: a stream of given events, and a stand-in for the runtime."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from triggerer.abc import BaseEventTrigger, TriggerEvent, current_subscriber


class GivenStream:
    """A shared stream that yields the given events, and then raises `error`, or waits for ever if `error` is None."""

    def __init__(self, raws: Sequence[Any] = (), error: Exception | None = None) -> None:
        self._raws = raws
        self._error = error
        self.pulled = 0
        self.exhausted = anyio.Event()

    async def events(self) -> AsyncGenerator[Any, None]:
        for raw in self._raws:
            self.pulled += 1
            yield raw
            await checkpoint()
        self.exhausted.set()
        if self._error is not None:
            raise self._error
        await anyio.sleep_forever()


class RejectionCount:
    """Accepts calls of `reject_shared_stream_event`, as the runtime would, and counts them."""

    def __init__(self) -> None:
        self.rejections = 0

    def reject_open_event(self, reason: str | None = None) -> bool:
        self.rejections += 1
        return True


@contextmanager
def runtime_around(runtime: RejectionCount | None = None) -> Iterator[None]:
    """While the block lasts, stand in for the runtime when a filter rejects an event."""
    token = current_subscriber.set(runtime or RejectionCount())
    try:
        yield
    finally:
        current_subscriber.reset(token)


def filtered(trigger: BaseEventTrigger, stream: GivenStream) -> AsyncGenerator[TriggerEvent, None]:
    """The trigger events that the trigger's filter yields for a stream."""
    events = trigger.filter_shared_stream(stream.events())
    assert isinstance(events, AsyncGenerator), "write it as `async def` with `yield`"
    return events


async def cancel_soon(scope: anyio.CancelScope) -> None:
    """Cancel the scope after some turns of the event loop."""
    for _ in range(20):
        await checkpoint()
    scope.cancel()
