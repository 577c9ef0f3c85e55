"""Runs triggers that have a bookmark instead of a shared stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import anyio

from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.domain.events import EventSource
from triggerer.domain.text.json_text import dump_json
from triggerer.domain.watchers.bookmarks import (
    MAX_BOOKMARK_BYTES,
    MAX_EVENTS,
    BookmarkChange,
    BookmarkStore,
)
from triggerer.errors import PluginError, RowRefused
from triggerer.streams.pending_limit import PendingLimit


async def run_from_bookmark(
    trigger: BaseEventTrigger,
    *,
    name: str,
    source: EventSource,
    store: BookmarkStore | None,
    pending: PendingLimit,
) -> None:
    """Store the events and bookmarks that `trigger.run_from()` yields, until it returns.

    The bookmark is the JSON value from which the trigger continues after a restart. The generator is resumed once the
    events and the bookmark that it yielded are durable.

    Args:
        source: Has exactly one watcher: `triggerer.dag_processing.describing` makes a separate trigger for each watcher
            with a bookmark.
    Raises:
        Exception: The error of `run_from()`, or of the store. The trigger starts again from the durable bookmark.
    """
    if store is None or source.fence is None:
        raise PluginError(f"{name} has a bookmark, and there is no store for it here")
    (watcher,) = source.watchers
    classpath, _ = trigger.serialize()
    last = await store.load(source.fence, watcher.watcher_id, classpath)
    batches = trigger.run_from(last.value)
    if not isinstance(batches, AsyncGenerator):
        raise PluginError(
            f"{type(trigger).__qualname__}.run_from() returned {type(batches).__qualname__}",
            hint="write it as an async generator: `async def` with `yield`",
        )
    previous = last.change
    async with aclosing(batches):
        async for batch in batches:
            events, value = _checked(batch, name)
            encoded = _encode(value)
            # While the service is stopping, the limit is zero. `wait_for_room` then waits until it is cancelled, so
            # nothing new is stored.
            await pending.wait_for_room()
            answer = _Answer(pending)
            change = BookmarkChange(
                source.fence,
                watcher,
                classpath,
                previous,
                uuid4().hex,
                encoded,
                events,
                answer.complete,
            )
            try:
                store.submit_nowait(change)
            except BaseException:
                # The store will never answer. For example, the code of an event's payload has raised.
                pending.give_room()
                raise
            await answer.wait()
            previous = change.change


class _Answer:
    """The store's answer to one change."""

    def __init__(self, pending: PendingLimit) -> None:
        self._pending = pending
        self._done = anyio.Event()
        self._error: Exception | None = None
        pending.count += 1

    def complete(self, error: Exception | None) -> None:
        self._error = error
        self._pending.give_room()
        self._done.set()

    async def wait(self) -> None:
        """Wait until the change is durable.

        Raises:
            Exception: The store refused it.
        Cancellation: The change may become durable anyway.
        """
        await self._done.wait()
        if self._error is not None:
            raise self._error


def _checked(batch: Any, name: str) -> tuple[Sequence[TriggerEvent], Any]:
    match batch:
        case ([*events], value) if all(isinstance(one, TriggerEvent) for one in events):
            pass
        case _:
            raise PluginError(
                f"run_from() of {name} yielded {type(batch).__qualname__}, not a list of TriggerEvents and a bookmark"
            )
    if len(events) > MAX_EVENTS:
        raise PluginError(
            f"run_from() of {name} yielded {len(events)} events with one bookmark, {MAX_EVENTS} are allowed",
            hint="yield a bookmark after every few hundred events",
        )
    return events, value


def _encode(value: Any) -> bytes:
    try:
        encoded = dump_json(value, "a bookmark")
    except RowRefused as error:
        raise PluginError(error.message, hint=error.hint) from error
    if len(encoded) > MAX_BOOKMARK_BYTES:
        raise PluginError(
            f"a bookmark has {len(encoded)} bytes, {MAX_BOOKMARK_BYTES} are allowed",
            hint="store only what the trigger needs to continue",
        )
    return encoded
