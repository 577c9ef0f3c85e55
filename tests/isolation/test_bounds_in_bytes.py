"""Data to and from an isolated filter is bounded in bytes, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.isolation.conftest import isolate_in, until
from tests.isolation.triggers import Alone, Large
from tests.unit.streams.streams import Upstream
from triggerer.abc import TriggerEvent
from triggerer.errors import PluginError
from triggerer.isolation import Isolation, pickling
from triggerer.isolation.messages import (
    Close,
    Command,
    Credit,
    Derived,
    GeneratorMethod,
    RawEvents,
    Report,
    Requested,
    Start,
)
from triggerer.isolation.pickling import FRAME_BYTES, in_frames
from triggerer.isolation.process import TriggerProcess
from triggerer.isolation.remote_generator import PREFETCH_BYTES
from triggerer.isolation.trigger_server import MOST_BYTES_IN_TRANSIT, TriggerServer
from triggerer.testing import StreamHarness

MIB = 1024 * 1024


async def test_large_raw_events_are_sent_ahead_up_to_a_bound_in_bytes(
    isolation: Isolation, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An earlier version sent 64 messages ahead in one frame, however large. If the frame exceeded the channel's limit,
    # the trigger failed.
    monkeypatch.setattr("triggerer.processes.ipc.MAX_FRAME_BYTES", 8 * MIB)
    sent: list[int] = []
    send = TriggerProcess.send

    def noted(self: TriggerProcess, command: Command) -> None:
        if isinstance(command, RawEvents):
            sent.append(sum(map(len, command.events)))
        send(self, command)

    monkeypatch.setattr(TriggerProcess, "send", noted)
    async with isolation, StreamHarness() as streams:
        isolate = isolate_in(isolation, "process")
        one = await streams.add(isolate(Large, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put(*((number, "x" * (MIB // 2), 1) for number in range(80)))
        await until(lambda: len(upstream.advanced) == 80 or one.error)
        assert one.error is None
        assert [event.payload["value"][0] for event in one.events] == list(range(80))
    assert max(sent) <= PREFETCH_BYTES + 2 * MIB


@pytest.mark.parametrize("placement", ["thread", "process"])
async def test_many_large_events_derive_from_one(
    isolation: Isolation, placement: str, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        isolate = isolate_in(isolation, placement)
        one = await streams.add(isolate(Large, upstream=upstream.name, notes=str(tmp_path)))
        # Each of the second message's events is larger than the bound.
        upstream.put((0, "x" * MIB, 40), (1, "x" * (MOST_BYTES_IN_TRANSIT + MIB), 3), (2, "x", 1))
        await until(lambda: len(upstream.advanced) == 3 or one.error)
        assert one.error is None
        expected = [(0, n) for n in range(40)] + [(1, n) for n in range(3)] + [(2, 0)]
        assert [tuple(event.payload["value"]) for event in one.events] == expected


class Yields(Alone):
    async def run(self) -> AsyncIterator[TriggerEvent]:
        for number in range(self.count):
            yield TriggerEvent(number)


async def test_a_filter_waits_for_credit_when_many_bytes_are_in_transit() -> None:
    reports: list[Report] = []
    server = TriggerServer(
        Yields(100),
        "one",
        report=reports.append,
        unpack=lambda value: value,
        pack=lambda value: value,
        size_of=lambda _: 3 * MIB,
    )

    def derived() -> list[Any]:
        return [report.payload for report in reports if isinstance(report, Derived)]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        server.commands.put(Start(GeneratorMethod.RUN))
        # Two events have 6 MiB. The third exceeds the bound, so no further event is derived.
        await until(lambda: len(derived()) == 3)
        await anyio.sleep(0.05)
        assert derived() == [0, 1, 2]
        server.commands.put(Credit(2))
        await until(lambda: len(derived()) == 5)
        await anyio.sleep(0.05)
        assert derived() == [0, 1, 2, 3, 4]
        server.commands.put(Close())


async def test_a_raw_event_that_is_too_large_for_the_channel_fails_its_own_trigger(
    isolation: Isolation, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickling, "MOST_PACKED_BYTES", MIB)
    async with isolation, StreamHarness() as streams:
        isolate = isolate_in(isolation, "process")
        one = await streams.add(isolate(Large, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((0, "x", 1), (1, "x" * 2 * MIB, 1))
        await until(lambda: one.error)
        assert isinstance(one.error, PluginError)
        assert "may be handed to another process" in str(one.error)
        assert len(one.events) == 1


def test_messages_are_divided_among_frames_by_their_size() -> None:
    large = RawEvents([b"x" * (FRAME_BYTES // 2 + 1)])
    small = Requested()
    assert [len(frame) for frame in in_frames([small, large, small, large, small])] == [4, 1]
    assert [len(frame) for frame in in_frames([Derived(b"", FRAME_BYTES), small])] == [1, 1]
    assert list(in_frames([])) == []


async def test_an_error_with_a_very_long_text_is_cut() -> None:
    packed = pickling.PackedError.of(ValueError("x" * 10 * MIB))
    assert len(packed.text) == MIB
    assert packed.pickled is None
    assert isinstance(packed.unpack(), PluginError)
