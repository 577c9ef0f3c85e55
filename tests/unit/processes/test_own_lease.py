"""A lease as its owner sees it."""

from __future__ import annotations

import time
from datetime import timedelta

import anyio

from triggerer.processes.own_lease import OwnLease, boottime


class Clock:
    """Shows what a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease_of(clock: Clock, seconds: float = 12) -> OwnLease:
    return OwnLease(timedelta(seconds=seconds), margin=1 / 12, clock=clock)


def test_it_is_over_until_it_is_extended_and_a_margin_before_others_may_take_it() -> None:
    clock = Clock()
    lease = lease_of(clock)
    assert lease.is_over
    asked_at, clock.now = clock.now, 103.0
    lease.extend(asked_at)
    assert not lease.is_over
    clock.now = 110.9
    assert not lease.is_over
    clock.now = 111.0
    assert lease.is_over


def test_an_answer_that_comes_late_extends_nothing_that_is_over_by_then() -> None:
    clock = Clock()
    lease = lease_of(clock)
    asked_at, clock.now = clock.now, 140.0
    lease.extend(asked_at)
    assert lease.is_over


def test_an_older_request_that_is_answered_later_does_not_shorten_it() -> None:
    clock = Clock()
    lease = lease_of(clock)
    lease.extend(105.0)
    lease.extend(101.0)
    assert lease.ends_at == 116.0


def test_unlimited_is_never_over() -> None:
    assert not OwnLease.unlimited().is_over


def test_its_clock_is_the_one_that_goes_on_while_the_machine_is_suspended() -> None:
    assert abs(boottime() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1
    lease = OwnLease(timedelta(seconds=60), margin=0.1)
    lease.extend(lease.now())
    assert 53 < lease.ends_at - time.clock_gettime(time.CLOCK_BOOTTIME) <= 54


async def test_waiting_for_its_end_takes_extensions_into_account() -> None:
    lease = OwnLease(timedelta(seconds=0.2), margin=0.0)
    lease.extend(lease.now())
    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lease.wait_until_over)
        await anyio.sleep(0.1)
        lease.extend(lease.now())
    assert anyio.current_time() - began >= 0.3
    assert lease.is_over


async def test_waiting_for_an_extension_is_not_satisfied_by_one_that_came_too_late() -> None:
    clock = Clock()
    lease = lease_of(clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lease.wait_until_extended)
        await anyio.wait_all_tasks_blocked()
        lease.extend(50.0)
        await anyio.wait_all_tasks_blocked()
        assert lease.is_over
        lease.extend(clock.now)
