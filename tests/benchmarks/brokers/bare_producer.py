"""Drives a queue's producer without the runtime. Messages of many lanes are advanced together."""

from typing import Any

import anyio
import anyio.abc

from triggerer.abc import AdvanceItem, AdvanceOutcome

_ACKED = AdvanceOutcome(acked=1, failed=0, rejected=0)


async def drain(made: Any, count: int) -> None:
    """Read and advance this number of messages, each in its own lane, and close the producer.

    The messages that arrive in one turn of the event loop are advanced together. Advances may overlap.
    """
    stream: Any = made.open_stream()
    left = count
    pulled: list[Any] = []
    done, has_pulled = anyio.Event(), anyio.Event()

    async def advance(payloads: list[Any]) -> None:
        nonlocal left
        await made.advance_lanes([[AdvanceItem(payload, _ACKED)] for payload in payloads])
        left -= len(payloads)
        if not left:
            done.set()

    async def pull() -> None:
        async for _, payload in stream:
            pulled.append(payload)
            has_pulled.set()

    async def pump(tasks: anyio.abc.TaskGroup) -> None:
        nonlocal has_pulled, pulled
        while True:
            await has_pulled.wait()
            has_pulled, together, pulled = anyio.Event(), pulled, []
            tasks.start_soon(advance, together)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        tasks.start_soon(pull)
        tasks.start_soon(pump, tasks)
        await done.wait()
        tasks.cancel_scope.cancel()
    await stream.aclose()
    await made.aclose()
