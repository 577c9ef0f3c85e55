"""Fan-out: broadcasts each message of the poll to all subscribers of a group."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio

from triggerer.abc import SharedStreamProducer
from triggerer.errors import PluginError
from triggerer.streams.delivery.flow import Flow
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.subscribers import Subscribers
from triggerer.streams.loop_tick import LoopTick


def tells_sizes(producer: type[SharedStreamProducer]) -> bool:
    """Return whether the class overrides `get_size`. Otherwise the method need not be called."""
    return producer.get_size is not SharedStreamProducer.get_size


class FanOut:
    """Broadcasts each message of the poll.

    The methods are long, because a call of another function would cost time for each message.
    """

    def __init__(self, state: GroupState, subscribers: Subscribers, flow: Flow) -> None:
        self._state = state
        self._present = subscribers.present
        self._flow = flow

    async def run(self, events: AsyncGenerator[Any, None]) -> None:
        """Broadcast the events of a stream without acknowledgements, until the stream ends."""
        state, flow, present = self._state, self._flow, self._present
        ledger, selecting = state.ledger, state.selection.tables
        turns = LoopTick()
        async for event in events:
            has_checked = ledger.next_seq >= flow.check_at
            if has_checked:
                await flow.check()
            if turns.has_turned:
                # Check the lease once for all events of one loop tick.
                turns.watch()
                if not state.may_act:
                    await self._wait_to_be_closed()
            ledger.broadcast(event)
            if selecting:
                self._offer(event)
            if state.readers:
                self._wake_readers()
            elif not present:
                state.progress.signal()
            if has_checked:
                # Wait only after the broadcast. This event has been pulled already, and on the fast path nothing would
                # redeliver it.
                await flow.wait_while_stopping()

    async def run_acknowledged(
        self, events: AsyncGenerator[Any, None], *, stores_messages: bool
    ) -> None:
        """Broadcast the events of an acknowledged stream, each with its payload, until the stream ends.

        Args:
            stores_messages: True: keep each event with its entry, because a watcher that misses the event needs a
                stored copy.
        """
        state, flow, present = self._state, self._flow, self._present
        ledger, lanes, selecting = state.ledger, state.lanes, state.selection.tables
        assert state.producer is not None
        get_lane = state.producer.get_advance_lane
        get_size = state.producer.get_size if tells_sizes(type(state.producer)) else None
        max_bytes = state.settings.max_outstanding_bytes
        behind = state.backlogs.by_lane if state.reads_log else ()
        in_queue = state.backlogs.by_lane
        turns = LoopTick()
        size_bytes = 0
        now = 0.0
        async for event, payload in events:
            if ledger.next_seq >= flow.check_at or lanes.outstanding_bytes >= max_bytes:
                await flow.check(payload)
            if turns.has_turned:
                # All events of one loop tick get the same time, and one check of the lease.
                turns.watch()
                now = state.clock.monotonic()
                if not state.may_act:
                    await self._wait_to_be_closed()
            if get_size is not None:
                size_bytes = get_size(payload)
                if size_bytes < 0:
                    raise PluginError(
                        f"get_size() of the shared stream {self._state.name} is negative"
                    )
            ledger.broadcast_in_lane(event, payload, get_lane(payload), now, size_bytes)
            if stores_messages:
                ledger.entries[-1].event = event
                if in_queue:
                    state.record_newest(ledger.entries[-1], size_bytes)
            if behind:
                state.append_to_lane_tail(event, payload, size_bytes)
            if selecting:
                self._offer(event)
            if state.readers:
                self._wake_readers()
            elif not present:
                state.progress.signal()
            if lanes.newly_full is not None:
                await flow.handle_full_lane()

    async def _wait_to_be_closed(self) -> None:
        """Wait to be cancelled, because the lease has ended or the group was closed."""
        await anyio.sleep_forever()

    def _wake_readers(self) -> None:
        state = self._state
        readers, state.readers = state.readers, {}
        for reader in readers:
            reader.wake()

    def _offer(self, event: Any) -> None:
        state = self._state
        state.selection.offer(event, state.ledger.next_seq - 1)
        if not state.progress.is_signalled:
            # If no selector wants the event, no subscriber wakes the pump, but the event must be advanced.
            state.progress.signal()
