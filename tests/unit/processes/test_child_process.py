"""Children with a channel, a lifeline and captured output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.isolation.conftest import until
from tests.services.process import lives
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import CHANNEL_VARIABLE, LIFELINE_VARIABLE, ChannelClosed

_PRELUDE = """
import os, signal, subprocess, sys, time
from triggerer.processes.ipc import connect_to_parent
channel = connect_to_parent()
"""

Start = Callable[..., AbstractAsyncContextManager[ChildProcess]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a context manager that starts a child with the given code, and supervises it within the block."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    @asynccontextmanager
    async def begin(code: str, *, captures_output: bool = False) -> AsyncIterator[ChildProcess]:
        (tmp_path / "child.py").write_text(_PRELUDE + code)
        child = await ChildProcess.start("child", captures_output=captures_output)
        async with aclosing(child), anyio.create_task_group() as tasks:
            tasks.start_soon(child.supervise)
            with anyio.fail_after(20):
                yield child
            tasks.cancel_scope.cancel()

    return begin


async def test_all_that_it_sent_is_received_though_somebody_outside_its_group_holds_the_channel(
    start: Start,
) -> None:
    code = """
for number in range(10):
    channel.send([number, "x" * 1000])
outside, left = os.pipe()
if (holder := os.fork()) == 0:
    os.setsid()
    os.write(left, b"1")
    time.sleep(60)
os.read(outside, 1)
channel.send(holder)
os._exit(4)
"""
    async with start(code) as child:
        await child.gone.wait()
        assert child.returncode == 4
        for number in range(10):
            assert (await child.channel.receive())[0] == number
        holder = await child.channel.receive()
        try:
            assert lives(holder)
            with pytest.raises(ChannelClosed) as closed:
                await child.channel.receive()
            assert not closed.value.unread
            with pytest.raises(ChannelClosed):
                await child.channel.send("nobody reads this")
        finally:
            os.kill(holder, signal.SIGKILL)


async def test_one_that_ends_without_reading_what_it_was_sent_is_told_apart(start: Start) -> None:
    async with start("channel.send(0); time.sleep(60)") as child:
        await child.channel.receive()
        await child.channel.send("unread")
        child.kill()
        with pytest.raises(ChannelClosed) as closed:
            await child.channel.receive()
        assert closed.value.unread


async def test_a_grandchild_inherits_neither_channel_nor_lifeline(start: Start) -> None:
    code = """
show = "import os; print(sorted(os.listdir('/proc/self/fd')), sorted(os.environ))"
done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, close_fds=False)
channel.send(done.stdout)
"""
    async with start(code) as child:
        said = await child.channel.receive()
    # Descriptor 3 belongs to `listdir` itself.
    assert said.startswith("['0', '1', '2', '3'] ")
    assert CHANNEL_VARIABLE not in said
    assert LIFELINE_VARIABLE not in said


async def test_the_end_of_its_output_is_kept(start: Start) -> None:
    code = "print('x' * 100_000 + ' the end', flush=True)"
    async with start(code, captures_output=True) as child:
        assert await child.reap() == 0
        assert len(child.output) <= 8000
        assert child.output.endswith("x the end")


async def test_it_ends_by_itself_within_the_grace(start: Start) -> None:
    code = """
channel.send(0)
try:
    channel.receive()
except EOFError:
    sys.exit(5)
"""
    async with start(code) as child:
        await child.channel.receive()
        child.channel.shut_down()
        await child.aclose(grace_s=10)
        assert child.returncode == 5


async def test_after_the_grace_its_group_is_killed(start: Start) -> None:
    code = "channel.send(subprocess.Popen(['sleep', '300']).pid); time.sleep(300)"
    async with start(code) as child:
        grandchild = await child.channel.receive()
        await child.aclose(grace_s=0.1)
        assert child.returncode == -signal.SIGKILL
        await until(lambda: not lives(grandchild))


async def test_one_that_cannot_be_started_leaves_no_descriptor_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        await ChildProcess.start("child", captures_output=True)
    assert set(Path("/proc/self/fd").iterdir()) == before
