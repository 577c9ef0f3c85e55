"""The executor's end of a run's process."""

import socket
from typing import cast

import anyio
from anyio.lowlevel import checkpoint

from triggerer.executor.slots.worker_process import RunHandle, WorkerProcess
from triggerer.processes.ipc import Channel, ChildChannel
from triggerer.worker.protocol import message


class _Worker:
    async def close(self, process: RunHandle) -> None:
        await process.aclose()


async def test_the_last_frame_is_received_even_if_the_end_of_the_process_is_reported_first() -> (
    None
):
    ours, theirs = socket.socketpair()
    channel = await Channel.over(ours.detach())
    process = RunHandle(cast("WorkerProcess", _Worker()), 1, 1, channel)
    with theirs:
        ChildChannel(theirs).send(message("called", run=7))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.close_in_time)
        process.mark_ended(0)
        for _ in range(20):
            await checkpoint()
        assert (await process.receive())["run"] == 7
        process.reader_done.set()
