"""A process and its group are killed only while their numbers cannot belong to another process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from tests.isolation.conftest import until
from tests.services.process import is_alive
from triggerer.processes.group_leader import GroupLeader

# The child lives on, in the group of its parent.
_LEAVES_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "300"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(child.pid))
os.rename(sys.argv[1] + ".new", sys.argv[1])
os._exit(7)
"""


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A list of the killed process groups. A group's leader must be reaped after the kill, and not before."""
    numbers: list[int] = []
    killpg = os.killpg

    def kill(group: int, number: int) -> None:
        # Raises if the leader was reaped: then its number could belong to another process.
        os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        numbers.append(group)
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", kill)
    yield numbers
    for number in numbers:
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _start(code: str, *arguments: str) -> GroupLeader:
    command = [sys.executable, "-c", code, *arguments]
    return GroupLeader(command, pass_fds=(), env=os.environ)


async def test_one_that_ends_by_itself_takes_its_group_with_it(
    tmp_path: Path, killed: list[int]
) -> None:
    note = tmp_path / "child"
    leader = _start(_LEAVES_A_CHILD, str(note))
    await until(note.exists)
    await until(lambda: psutil.Process(leader.pid).status() == psutil.STATUS_ZOMBIE)
    child = psutil.Process(int(note.read_text()))
    assert leader.returncode is None
    assert await leader.wait() == 7
    await until(lambda: not is_alive(child))
    leader.kill()
    assert await leader.wait() == 7
    assert killed == [leader.pid]


async def test_one_that_has_ended_unnoticed_can_still_be_killed(killed: list[int]) -> None:
    leader = _start("")
    await until(lambda: psutil.Process(leader.pid).status() == psutil.STATUS_ZOMBIE)
    leader.kill()
    assert await leader.wait() == 0
    assert killed == [leader.pid] * 2


async def test_several_may_wait_and_some_give_up() -> None:
    leader = _start("import time; time.sleep(300)")
    codes = []

    async def wait() -> None:
        codes.append(await leader.wait())

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(0.01):
                await leader.wait()
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            leader.kill()
    assert codes == [-signal.SIGKILL] * 2


async def test_one_that_cannot_be_watched_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, killed: list[int]
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        _start("import time; time.sleep(300)")
    assert len(killed) == 1
