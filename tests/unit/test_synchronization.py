"""Waking tasks of one event loop."""

from __future__ import annotations

import asyncio
import math

import anyio
import pytest
from anyio.lowlevel import checkpoint

from triggerer.synchronization import AutoResetEvent, Notifier


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# AutoResetEvent


async def test_an_event_that_is_set_before_anybody_waits_is_not_lost_and_counts_once() -> None:
    event = AutoResetEvent()
    event.set()
    event.set()
    await event.wait()
    waiting = asyncio.ensure_future(event.wait())
    await turns()
    assert not waiting.done()
    event.set()
    await waiting
    assert not event.is_set


async def test_an_event_whose_waiter_is_cancelled_serves_the_next_one() -> None:
    event = AutoResetEvent()
    with anyio.move_on_after(0):
        await event.wait()
    event.set()
    with anyio.fail_after(30):
        await event.wait()


async def test_a_waiter_that_is_cancelled_when_it_was_woken_leaves_the_event_set() -> None:
    event = AutoResetEvent()
    waiting = asyncio.ensure_future(event.wait())
    await turns()
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert event.is_set


async def test_an_event_that_is_cleared_before_its_waiter_runs_keeps_it_waiting() -> None:
    event = AutoResetEvent()
    waiting = asyncio.ensure_future(event.wait())
    await turns(1)
    event.set()
    event.clear()
    await turns()
    assert not waiting.done()
    event.set()
    await waiting


async def test_waiting_for_an_event_that_is_set_is_a_checkpoint() -> None:
    """A loop whose event is set again each time lets other tasks run, and can be cancelled."""
    event = AutoResetEvent()
    ran = False

    async def other() -> None:
        nonlocal ran
        ran = True

    event.set()
    others = asyncio.ensure_future(other())
    await event.wait()
    assert ran
    await others
    event.set()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await event.wait()
    assert scope.cancelled_caught
    assert event.is_set


async def test_waiting_for_so_long_tells_whether_the_event_was_set() -> None:
    event = AutoResetEvent()
    assert not await event.wait_for(0.01)
    assert not await event.wait_for(-1)
    waiting = asyncio.ensure_future(event.wait_for(30))
    await turns()
    event.set()
    assert await waiting
    assert not event.is_set
    event.set()
    assert await event.wait_for(0)
    assert not event.is_set


async def test_an_event_that_is_set_when_the_time_is_over_serves_who_waited_or_the_next() -> None:
    event = AutoResetEvent()
    waiting = asyncio.ensure_future(event.wait_for(0))
    asyncio.get_running_loop().call_later(0, event.set)
    was_set = await waiting
    await asyncio.sleep(0.01)
    assert event.is_set is not was_set


async def test_a_task_cancelled_while_it_waits_leaves_the_event_set_and_no_timer() -> None:
    event = AutoResetEvent()
    waiting = asyncio.ensure_future(event.wait_for(0.01))
    await turns()
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    later = asyncio.ensure_future(event.wait())
    await later
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    event.set()
    await waiting


async def test_an_endless_time_is_no_time() -> None:
    event = AutoResetEvent()
    waiting = asyncio.ensure_future(event.wait_for(math.inf))
    await turns()
    event.set()
    assert await waiting


# Notifier


async def test_all_who_wait_are_woken_once() -> None:
    notifier = Notifier()
    woken = []

    async def wait(name: str) -> None:
        await notifier.wait()
        woken.append(name)
        await notifier.wait()
        woken.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "one")
        tasks.start_soon(wait, "two")
        await turns()
        notifier.notify_all()
        notifier.notify_all()
        await turns()
        assert sorted(woken) == ["one", "two"]
        notifier.notify_all()
        await turns()
        assert sorted(woken) == ["one", "one", "two", "two"]


async def test_a_notification_that_nobody_waits_for_is_not_remembered() -> None:
    notifier = Notifier()
    notifier.notify_all()
    with anyio.move_on_after(0.01) as scope:
        await notifier.wait()
    assert scope.cancelled_caught


async def test_a_waiter_that_was_cancelled_keeps_nobody_from_being_woken() -> None:
    notifier = Notifier()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notifier.wait)
        await checkpoint()
        with anyio.move_on_after(0):
            await notifier.wait()
        notifier.notify_all()
