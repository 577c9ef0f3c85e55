"""The service's side of a moved filter: repeats to the runtime what the filter does elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import anyio

from triggerer.abc import TriggerEvent, current_subscriber, reject_shared_stream_event
from triggerer.errors import PluginError
from triggerer.isolation.guest import MOST_UNTAKEN
from triggerer.isolation.messages import (
    Asked,
    Derived,
    EndStream,
    Hand,
    Opened,
    Over,
    Rejected,
    Took,
)
from triggerer.isolation.place import Place
from triggerer.runtime.subscriber import Subscriber
from triggerer.synchronization import AutoResetEvent

MOST_AHEAD: Final = 64
"""Raw events that a guest may have beyond the one that the runtime has given out. What a filter sees ahead and does not
get to comes again, so there should not be many; enough that a filter need not wait for each."""

_TAKEN_EVERY: Final = MOST_UNTAKEN // 4


class Relay:
    """One run of a moved filter.

    `events` is driven in the filter's stead; `pump` runs beside it, since the filter may derive something while the
    stream is awaited. The pump pulls when the guest's filter has asked, and never before.
    """

    def __init__(self, place: Place, stream: AsyncIterator[Any] | None) -> None:
        """`stream`: None for `run()`, which reads none."""
        self._place = place
        self._stream = stream
        subscriber = current_subscriber.get()
        # Outside the runtime (a plugin's own test of its filter) nothing is known ahead.
        self._subscriber = subscriber if isinstance(subscriber, Subscriber) else None
        self._asked = 0
        self._pulled = 0
        self._handed = 0
        self._opened = 0
        self._was_asked = AutoResetEvent()
        self._has_pulled = AutoResetEvent()
        self._scope = anyio.CancelScope()
        self._not_packed: PluginError | None = None
        self._pump_is_over = False
        self._pump_ended = anyio.Event()

    async def events(self) -> AsyncGenerator[TriggerEvent, None]:
        """What the filter derives, each while the raw event is open that it derives from.

        Raises:
            Exception: What the filter raised, or what ended its place.
        """
        taken = 0
        while True:
            report = await self._place.report()
            match report:
                case Asked():
                    self._asked += 1
                    self._was_asked.set()
                case Opened():
                    self._opened += 1
                    await self._until_pulled()
                case Rejected():
                    if self._opened <= self._pulled:
                        reject_shared_stream_event()
                case Derived(payload):
                    yield TriggerEvent(self._place.unpack(payload))
                    taken += 1
                    if taken == _TAKEN_EVERY:
                        self._place.order(Took(taken))
                        taken = 0
                case Over(error):
                    if self._not_packed is not None:
                        raise self._not_packed
                    if error is not None:
                        raise error
                    return

    async def _until_pulled(self) -> None:
        # One that the guest has seen ahead is there, unless the stream has ended meanwhile: then nothing that the
        # filter still does counts, and the runtime drops it.
        while self._pulled < self._opened and not self._pump_is_over:
            await self._has_pulled.wait()

    async def pump(self) -> None:
        """Pull raw events as they are asked for and hand them over; ends with the stream, or by `stop`."""
        assert self._stream is not None
        end: EndStream | None = None
        try:
            with self._scope:
                await self._until_asked()
                async for raw in self._stream:
                    self._pulled += 1
                    self._has_pulled.set()
                    self._hand_over(raw)
                    await self._until_asked()
                if not self._has_left:
                    end = EndStream(None)
        except Exception as error:  # noqa: BLE001  (whatever the stream raises is raised to the filter)
            end = EndStream(error)
        finally:
            self._pump_is_over = True
            self._has_pulled.set()
            self._pump_ended.set()
        if end is not None:
            self._place.order(end)

    @property
    def _has_left(self) -> bool:
        # Its filter is about to be cancelled, and shall not take that for the end of what there was to read.
        return self._subscriber is not None and not self._subscriber.is_present

    async def _until_asked(self) -> None:
        while self._asked <= self._pulled:
            await self._was_asked.wait()

    def _hand_over(self, raw: Any) -> None:
        packed: list[Any] = []
        if self._handed < self._pulled:
            try:
                packed.append(self._place.pack(raw))
            except PluginError as error:
                # Also where the filter makes nothing of what its stream raises: it has not seen this event.
                self._not_packed = error
                raise
        ahead = self._handed + len(packed) - self._pulled
        if ahead <= MOST_AHEAD // 2:
            for event in self._known_ahead()[ahead:]:
                try:
                    packed.append(self._place.pack(event))
                except PluginError:
                    # It is found again, and fails the filter, when it is its turn.
                    break
        if packed:
            self._handed += len(packed)
            self._place.order(Hand(packed))

    def _known_ahead(self) -> list[Any]:
        """What follows the event that was pulled last, and has been broadcast already."""
        return [] if self._subscriber is None else self._subscriber.known_ahead(MOST_AHEAD)

    async def stop(self) -> None:
        """End the pump: it is in nobody's stream any more."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._pump_ended.wait()
