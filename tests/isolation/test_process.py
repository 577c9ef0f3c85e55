"""The start of a trigger's process."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import anyio
import pytest

from tests.isolation import triggers
from triggerer.errors import PluginError
from triggerer.isolation import Isolation
from triggerer.isolation import process as module
from triggerer.isolation.messages import GeneratorMethod
from triggerer.processes.ipc import _frame


async def test_one_that_does_not_take_its_arguments_fails_its_trigger(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments are larger than the channel and were cut off, so the process misread later bytes."""
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
