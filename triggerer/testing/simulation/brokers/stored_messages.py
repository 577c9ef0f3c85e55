"""Producers whose messages can be stored for a single watcher (contract, rule 18)."""

from __future__ import annotations

import re
from typing import Any

from triggerer.testing.simulation.brokers.log_producer import SimulatedLog
from triggerer.testing.simulation.brokers.producer import SimulatedProducer


class StoresMessages(SimulatedProducer):
    """Dumps only a message's key. The model of the broker never deletes a message, so the key is enough to load it."""

    def dump_event(self, event: Any) -> bytes:
        return self._broker.message_of(event).key.encode()

    def load_event(self, data: bytes) -> Any:
        topic, lane, offset = data.decode().rsplit("/", 2)
        assert topic == self._broker.topic
        return self._broker.lanes[int(lane)].messages[int(offset)].event

    async def dead_letter(self, event: Any, reason: str) -> None:
        catching_up = self._broker.checker.catching_up
        message = self._broker.message_of(event)
        if reason.startswith("the store has no room for messages"):
            # The reason ends with the ids of the watchers for which the message was to be stored.
            watchers = [int(number) for number in re.findall(r"\d+", reason.rpartition("(")[2])]
            assert watchers
            for watcher in watchers:
                catching_up.check_not_parked(watcher, message)
        else:
            named, _, _ = reason.partition(":")
            watchers = [int(number) for number in re.findall(r"watcher (\d+)", named)]
            assert watchers
            if len(watchers) > 1:
                # These watchers share a trigger. Those whose positions are past the message have received it.
                watchers = [one for one in watchers if catching_up.is_standing_before(one, message)]
        await self._simulate_io()
        for watcher in watchers:
            catching_up.on_dead_lettered(watcher, message)
        await self._simulate_io()


class SettingAsideLog(StoresMessages, SimulatedLog):
    """A log whose messages can be parked. At times `dump_event` or `load_event` raises, as after a deployment."""

    def dump_event(self, event: Any) -> bytes:
        if self._is_refused():
            self._broker.checker.parked.on_not_written()
            raise ValueError("it cannot be written")
        return super().dump_event(event)

    def load_event(self, data: bytes) -> Any:
        if self._is_refused():
            raise ValueError("it cannot be read")
        return super().load_event(data)

    def _is_refused(self) -> bool:
        broker = self._broker
        is_drawn = broker.refusing.random() < broker.scenario.filter_fault_rate
        return is_drawn and not broker.faults.are_over
