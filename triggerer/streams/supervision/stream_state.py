"""A stream's state: a JSON value that a producer stores, and that the stream's next producer receives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import anyio

from triggerer.abc import SharedStreamProducer, StreamState
from triggerer.domain.events import Fence
from triggerer.domain.text.json_text import dump_json, load_json
from triggerer.domain.watchers.stream_states import MAX_STATE_BYTES, StateChange, StateStore
from triggerer.errors import PluginError, RowRefused


def tells_state_ahead(producer: type[SharedStreamProducer]) -> bool:
    """Return whether the state is stored together with events: the class overrides `use_state` and `state_after`."""
    return has_state(producer) and producer.state_after is not SharedStreamProducer.state_after


def has_state(producer: type[SharedStreamProducer]) -> bool:
    """Return whether producers of this class have a stored state: the class overrides `use_state`."""
    return producer.use_state is not SharedStreamProducer.use_state


async def load_state(store: StateStore | None, fence: Fence | None, key: Hashable) -> StreamState:
    """Read the state that was stored last.

    Raises:
        PluginError: There is no store, or no lease.
        StoreError: The store cannot be read now.
    """
    if store is None or fence is None:
        return await no_state()
    return StoredState(await store.load(fence, key), store, fence, key)


async def no_state() -> StreamState:
    """Refuse a producer that needs a stored state, because this group has no store or no lease.

    Raises:
        PluginError: Always.
    """
    raise PluginError("the producer has a state, and there is no store for it here")


class StoredState(StreamState):
    """The stored state of a stream.

    Each write names the lease with which the stream was opened. So the store refuses a write after another instance has
    claimed the stream.
    """

    def __init__(self, value: Any, store: StateStore, fence: Fence, key: Hashable) -> None:
        self._value = value
        self._key = key
        self._store = store
        self._fence = fence
        self._stored: bytes | None = None
        """The last value that this object has stored, as JSON. None: it has stored no value."""
        self._saving = 0
        self._ahead: anyio.Event | None = None
        self.on_saved: Callable[[], None] = lambda: None
        """Called when the store has answered a change that `save` submitted."""

    @property
    def is_saving(self) -> bool:
        return self._saving > 0

    def change_ahead(self, value: Any, on_done: Callable[[], None]) -> StateChange:
        """Return the change that stores `value`, for a transaction that also stores the events that led to the value.

        A later `save` waits until the store has answered this change.

        Raises:
            PluginError: The value is no JSON, or too large.
        """
        encoded = encode_state(value)
        self._ahead = anyio.Event()

        def on_answer(error: Exception | None) -> None:
            assert self._ahead is not None
            if error is None:
                self._mark_stored(encoded)
            ahead, self._ahead = self._ahead, None
            ahead.set()
            on_done()

        return StateChange(self._fence, self._key, encoded, on_answer)

    def _mark_stored(self, encoded: bytes) -> None:
        self._stored = encoded
        self._value = load_json(encoded)

    @property
    def value(self) -> Any:
        return self._value

    async def save(self, value: Any) -> None:
        encoded = encode_state(value)
        while self._ahead is not None:
            await self._ahead.wait()
        if encoded == self._stored and not self._saving:
            return
        done = anyio.Event()
        failures: list[Exception] = []

        def on_answer(error: Exception | None) -> None:
            # This also runs if the task that waits in `save` was cancelled.
            if error is None:
                self._mark_stored(encoded)
            else:
                failures.append(error)
            done.set()
            self._saving -= 1
            self.on_saved()

        self._saving += 1
        self._store.submit_nowait(StateChange(self._fence, self._key, encoded, on_answer))
        await done.wait()
        if failures:
            raise failures[0]


def encode_state(value: Any) -> bytes:
    """Write a state as JSON.

    Raises:
        PluginError: The value is no JSON, or too large.
    """
    try:
        encoded = dump_json(value, "the state of a stream")
    except RowRefused as error:
        raise PluginError(error.message, hint=error.hint) from error
    if len(encoded) > MAX_STATE_BYTES:
        raise PluginError(
            f"the state of a stream has {len(encoded)} bytes, {MAX_STATE_BYTES} are allowed",
            hint="store only what the producer needs to continue, and drop the oldest entries",
        )
    return encoded
