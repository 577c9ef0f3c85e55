"""`run` of a producer: its own task, in addition to the poll."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.unit.streams.streams import Acking, Producer, Upstream
from tests.unit.streams.supervised import supervised
from triggerer.abc import SharedStreamProducer
from triggerer.errors import GroupEnded
from triggerer.streams import MemberState


class Running(Producer):
    def __init__(self, upstream: Upstream) -> None:
        super().__init__(upstream)
        self.told = anyio.Event()
        self.how: str | None = None
        self.task: asyncio.Task[Any] | None = None
        self.was_open = False

    async def run(self) -> None:
        self.task = asyncio.current_task()
        try:
            await self.told.wait()
        finally:
            self.was_open = not self.upstream.closed
        if self.how == "raise":
            raise OSError("the renewal failed")
        if self.how == "cancel":
            assert self.task is not None
            self.task.cancel()
            await anyio.lowlevel.checkpoint()


class FromRunning(Acking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Running(Upstream.known[kwargs["upstream"]])


def running(upstream: Upstream) -> Running:
    producer = upstream.producers[-1]
    assert isinstance(producer, Running)
    return producer


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "the renewal failed"),
        ("return", "run() of Running returned"),
        ("cancel", "cancel"),
    ],
)
async def test_a_run_that_ends_ends_the_group_loudly(
    upstream: Upstream, how: str, said: str
) -> None:
    async with supervised() as service:
        (one,) = service.host(FromRunning(upstream.name))
        upstream.put("before")
        await service.settle_down()
        assert upstream.outcomes() == {"before": (1, 0, 0)}
        running(upstream).how = how
        running(upstream).told.set()
        await service.settle_down()
        assert (one.state, type(one.error)) == (MemberState.FAILING, GroupEnded)
        assert said in str(one.error)
        await service.pass_time(2)
        upstream.put("after")
        await service.settle_down()
        assert one.state is MemberState.RUNNING
        assert upstream.outcomes()["after"] == (1, 0, 0)
        assert len(upstream.producers) == 2


async def test_it_has_a_task_with_the_keys_name_that_ends_before_the_producer_is_closed(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        service.host(FromRunning(upstream.name))
        await service.settle_down()
        task = running(upstream).task
        assert task is not None
        assert task.get_name() == f"shared-stream-run[{('FromRunning', upstream.name)}]"
    assert (task.done(), running(upstream).was_open, upstream.closed) == (True, True, 1)
