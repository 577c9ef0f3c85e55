"""The service's side of an isolated filter: repeats each step that the filter reports, so that the runtime sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import anyio

from triggerer.abc import TriggerEvent, current_subscriber, reject_shared_stream_event
from triggerer.errors import PluginError
from triggerer.isolation.messages import (
    Credit,
    Derived,
    EndStream,
    Finished,
    Opened,
    RawEvents,
    Rejected,
    Requested,
)
from triggerer.isolation.remote_trigger import RemoteTrigger
from triggerer.isolation.trigger_server import MOST_BYTES_IN_TRANSIT, MOST_IN_TRANSIT
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.synchronization import AutoResetEvent

PREFETCH_LIMIT: Final = 64
"""The most raw events that the service sends before the filter requests them.

If no event were sent ahead, the filter would wait for the service at each request. An event that is sent ahead but
never requested is not resolved, so the broker redelivers it.
"""

PREFETCH_BYTES: Final = 4 * 1024 * 1024
"""The limit in bytes of the events sent ahead to a process. The last event may exceed the limit."""

_CREDIT_EVERY: Final = MOST_IN_TRANSIT // 4
_CREDIT_EVERY_BYTES: Final = MOST_BYTES_IN_TRANSIT // 4


class RemoteGenerator:
    """One run of an isolated filter, or of an isolated `run()`. The runtime iterates over `events`.

    `pump` runs beside `events`, because a filter may read the stream in a child task while it yields events. A pull
    tells the runtime that the filter has passed the previous event. So `pump` pulls an event only when the isolated
    filter requests the event, even if the event was sent ahead.
    """

    def __init__(self, remote: RemoteTrigger, stream: AsyncIterator[Any] | None) -> None:
        """`stream`: None for `run()`, which reads no stream."""
        self._remote = remote
        self._stream = stream
        subscriber = current_subscriber.get()
        # Only a live filter has a `Subscriber`, which knows the next events. During catch-up, or in
        # a plugin's own test, there is no `Subscriber`, so no event is sent ahead.
        self._subscriber = subscriber if isinstance(subscriber, Subscriber) else None
        self._requested = 0
        self._pulled = 0
        self._sent = 0
        self._ahead: deque[int] = deque()
        """The sizes of the raw events that were sent ahead and are not pulled yet, in order."""
        self._bytes_ahead = 0
        self._opened = 0
        self._has_request = AutoResetEvent()
        self._has_pulled = AutoResetEvent()
        self._scope = anyio.CancelScope()
        self._not_packed: PluginError | None = None
        self._pump_is_over = False
        self._pump_ended = anyio.Event()

    async def events(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the filter's trigger events. A raw event is not resolved before its trigger events were yielded.

        Raises:
            Exception: The filter's error, or the error that ended its thread or process.
        """
        received = received_bytes = 0
        while True:
            report = await self._remote.report()
            match report:
                case Requested():
                    self._requested += 1
                    self._has_request.set()
                case Opened():
                    self._opened += 1
                    await self._until_pulled()
                case Rejected(reason):
                    if self._opened <= self._pulled:
                        reject_shared_stream_event(reason)
                case Derived(payload, size_bytes, key):
                    yield TriggerEvent(self._remote.unpack(payload), partition_key=key)
                    received += 1
                    received_bytes += size_bytes
                    if received == _CREDIT_EVERY or received_bytes >= _CREDIT_EVERY_BYTES:
                        self._remote.send(Credit(received))
                        received = received_bytes = 0
                case Finished(error):
                    if self._not_packed is not None:
                        raise self._not_packed
                    if error is not None:
                        raise error
                    return

    async def _until_pulled(self) -> None:
        # The isolated filter may have opened an event that was sent ahead, and that the pump has not pulled yet. Then
        # wait for the pump. After the stream's end the pump pulls nothing, and the runtime ignores the filter's events.
        while self._pulled < self._opened and not self._pump_is_over:
            await self._has_pulled.wait()

    async def pump(self) -> None:
        """Pull a raw event for each request of the isolated filter, and send the event unless it was sent ahead.

        The call returns when the stream has ended, or when `stop` is called.
        """
        assert self._stream is not None
        end: EndStream | None = None
        try:
            with self._scope:
                await self._until_requested()
                async for raw in self._stream:
                    self._pulled += 1
                    if self._ahead:
                        self._bytes_ahead -= self._ahead.popleft()
                    self._has_pulled.set()
                    self._send_raw(raw)
                    await self._until_requested()
                if not self._has_left:
                    end = EndStream(None)
        except Exception as error:  # noqa: BLE001  (raised to the filter, whatever it is)
            end = EndStream(error)
        finally:
            self._pump_is_over = True
            self._has_pulled.set()
            self._pump_ended.set()
        if end is not None:
            self._remote.send(end)

    @property
    def _has_left(self) -> bool:
        # True: the stream ended because the subscriber left its group. The runtime then cancels the filter. So do not
        # send the filter an ordinary end of its stream.
        return self._subscriber is not None and not self._subscriber.is_present

    async def _until_requested(self) -> None:
        while self._requested <= self._pulled:
            await self._has_request.wait()

    def _send_raw(self, raw: Any) -> None:
        packed: list[Any] = []
        if self._sent < self._pulled:
            try:
                packed.append(self._remote.pack(raw))
            except PluginError as error:
                # The isolated filter gets this error from its stream, and may catch it and continue. Then the event
                # would count as passed, although the filter never received it. So `events` raises the error too.
                self._not_packed = error
                raise
        # Send a large event alone: two events of the largest size do not fit into one frame.
        is_large = bool(packed) and self._remote.size_of(packed[0]) >= PREFETCH_BYTES
        has_room = (
            len(self._ahead) <= PREFETCH_LIMIT // 2 and self._bytes_ahead <= PREFETCH_BYTES // 2
        )
        if has_room and not is_large:
            for event in self._prefetchable()[len(self._ahead) :]:
                try:
                    packed.append(self._remote.pack(event))
                except PluginError:
                    # This event cannot be sent. `_send_raw` raises the error later, when the filter requests the event.
                    break
                size_bytes = self._remote.size_of(packed[-1])
                self._ahead.append(size_bytes)
                self._bytes_ahead += size_bytes
                if self._bytes_ahead >= PREFETCH_BYTES:
                    break
        if packed:
            self._sent += len(packed)
            self._remote.send(RawEvents(packed))

    def _prefetchable(self) -> list[Any]:
        """Return the next events that are broadcast already and not pulled yet, at most `PREFETCH_LIMIT`."""
        return [] if self._subscriber is None else self._subscriber.known_ahead(PREFETCH_LIMIT)

    async def stop(self) -> None:
        """End the pump, and wait until the pump no longer reads the stream."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._pump_ended.wait()
