"""The simulation's own trigger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from typing import Any, ClassVar
from zlib import crc32

from triggerer.abc import (
    BaseEventTrigger,
    SharedStreamSelector,
    TriggerEvent,
    reject_shared_stream_event,
)


class ExampleTrigger(BaseEventTrigger):
    """For each message: skips it, rejects it, yields events, or yields an event that the store refuses.

    The choice depends only on the message and on the trigger's `kind`.
    """

    kind: ClassVar[int] = 0
    """Set by the simulated host. The kind and the message together decide what the filter does."""
    acting_percent: ClassVar[int] = 60
    """The percentage of messages that the filter does not skip."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {}

    def shared_stream_key(self) -> Hashable:
        return "simulated"

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        """Return a selector of two of the three kinds of messages for half of the triggers, None for the other half."""
        wanted = _wanted_by(self.kind)
        return None if wanted is None else SharedStreamSelector("kind", _kind, wanted)

    @classmethod
    def derives(cls, kind: int, event: str) -> bool:
        """Whether the filter rejects an event or yields events for it."""
        wanted = _wanted_by(kind)
        is_wanted = wanted is None or _kind(event) in wanted
        return is_wanted and _draw(kind, event) < cls.acting_percent

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[str]
    ) -> AsyncIterator[TriggerEvent]:
        kind = self.kind
        selector = self.shared_stream_selector()
        async for event in shared_stream:
            if selector is not None and _kind(event) not in selector.values:
                continue
            drawn = _draw(kind, event)
            if drawn < 5:
                reject_shared_stream_event()
            elif drawn < 8:
                yield TriggerEvent({"event": event, "text": "\0"})
            elif drawn < self.acting_percent:
                for number in range(1 + drawn % 3 % 2):
                    yield TriggerEvent({"event": event, "number": number})


class SparingTrigger(ExampleTrigger):
    """Skips most messages, so that their delivery ends within a few turns of the loop."""

    acting_percent: ClassVar[int] = 12


def _draw(kind: int, event: str) -> int:
    return crc32(f"{event} {kind}".encode()) % 100


def _wanted_by(kind: int) -> frozenset[int] | None:
    return None if kind % 2 else frozenset({kind % 3, (kind + 1) % 3})


def _kind(event: str) -> int:
    return crc32(event.encode()) % 3
