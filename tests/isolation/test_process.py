"""The start of a trigger's process."""

from __future__ import annotations

import pickle
import queue
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.isolation import triggers
from triggerer.errors import PluginError
from triggerer.isolation import Isolation, child
from triggerer.isolation import process as module
from triggerer.isolation.messages import Finished, GeneratorMethod, Rejected, Terminated
from triggerer.isolation.pickling import from_frame
from triggerer.processes.ipc import ChildChannel, _frame


async def test_one_that_does_not_take_its_arguments_fails_its_trigger(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process never reads its arguments, which are larger than the channel's buffer. So sending them must time
    out."""
    deaf = tmp_path / "python"
    deaf.write_text("#!/bin/sh\nexec sleep 300\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(deaf))
    monkeypatch.setattr(module, "_START_S", 0.2)
    async with isolation:
        remote = isolation.new_process("one", "any.Trigger", {"note": "x" * 10_000_000})
        with anyio.fail_after(20), pytest.raises(PluginError, match=r"within 0\.2 s"):
            await remote.open()
        await isolation.close(remote)


@pytest.mark.parametrize(
    "data",
    [
        b"garbage" * 10,
        _frame(b"x" * 9),
        _frame(pickle.dumps(1)),
        _frame(pickle.dumps([1])),
        _frame(b"")[:4] + b"\xff\xff\xff\xff",
    ],
)
async def test_garbage_that_a_trigger_writes_into_its_channel_fails_that_trigger(
    isolation: Isolation, data: bytes
) -> None:
    name = f"{triggers.HERE}.WritesIntoItsChannel"
    async with isolation:
        remote = isolation.new_process("one", name, {"data": data.hex()})
        await remote.open()
        remote.start(GeneratorMethod.RUN)
        with anyio.fail_after(20), pytest.raises(PluginError, match="cannot be understood"):
            await remote.report()
        await isolation.close(remote)


async def test_a_partition_key_that_is_no_string_fails_its_trigger(isolation: Isolation) -> None:
    async with isolation:
        remote = isolation.new_process("one", f"{triggers.HERE}.YieldsAnOddKey", {})
        await remote.open()
        remote.start(GeneratorMethod.RUN)
        with anyio.fail_after(20):
            finished = await remote.report()
        assert isinstance(finished, Finished)
        assert "partition_key is a function" in str(finished.error)
        await isolation.close(remote)


def test_a_report_that_cannot_be_pickled_is_replaced_by_a_last_report() -> None:
    """In an earlier version, the thread that writes reports died at this report, and the service waited forever."""
    ours, theirs = socket.socketpair()
    with ours:
        reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        reports.put(Rejected(lambda: "no text"))  # type: ignore[arg-type]
        channel = ChildChannel(theirs)
        child.write(channel, reports)
        channel.close()
        received = ChildChannel(ours)
        (last,) = from_frame(received.receive_bytes())
        assert isinstance(last, Terminated)
        received.close()
