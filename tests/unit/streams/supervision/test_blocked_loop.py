"""The report of a blocked event loop names the trigger that blocks the loop, and the line of code.

The tests call `time.sleep` to block the event loop on purpose, or to keep a process stopped for a time.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
import structlog

from tests.unit.streams.streams import Acking, Fast, Upstream, Watching
from tests.unit.streams.supervised import supervised
from triggerer.abc import SharedStreamProducer, TriggerEvent
from triggerer.streams import RuntimeSettings
from triggerer.streams.supervision import blocked_loop as stalls
from triggerer.streams.supervision.blocked_loop import LogStalls, Stall, StallWatch, Usage, usage_of
from triggerer.testing import StreamHarness

THRESHOLD_S = 0.2


class Seen:
    def __init__(self) -> None:
        self.begun: list[Stall] = []
        self.over: list[tuple[Stall, float]] = []

    def began(self, stall: Stall) -> None:
        self.begun.append(stall)

    def ended(self, stall: Stall, seconds: float) -> None:
        self.over.append((stall, seconds))


@pytest.fixture(autouse=True)
def _usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake the processor time of the loop's thread: on a loaded machine the real one varies."""
    says(monkeypatch, lambda: Usage(computing=0.0, queueing=0.0))


def says(monkeypatch: pytest.MonkeyPatch, measure: Callable[[], Usage]) -> None:
    monkeypatch.setattr(stalls, "usage_of", lambda *_: measure)


def blocking(seconds: float) -> Callable[[Any], Any]:
    async def act(event: Any) -> None:
        time.sleep(seconds)  # the line to find

    return act


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110  (a thread makes it true)
            await anyio.sleep(0.005)


@pytest.mark.rule(
    "a blocking call in one trigger stalls all the others, and the log does not say which"
)
async def test_a_filter_that_blocks_is_named_with_the_line_and_its_end_is_told(
    upstream: Upstream,
) -> None:
    upstream.on_filter["slow"] = blocking(3 * THRESHOLD_S)
    seen = Seen()
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name, "fast"))
        slow = await streams.add(Acking(upstream.name, "slow"))
        with StallWatch(THRESHOLD_S, seen):
            await anyio.sleep(THRESHOLD_S)
            upstream.put(1)
            await until(lambda: seen.over)
        (stall,) = seen.begun
        assert stall.trigger == slow.member.name == "Acking#2"
        assert stall.task == "watcher[Acking#2]"
        assert stall.stream is None
        assert "time.sleep(seconds)  # the line to find" in stall.stack.splitlines()[-1]
        assert stall.is_computing is False
        assert THRESHOLD_S <= stall.seconds <= seen.over[0][1]
        ((same, seconds),) = seen.over
        assert same is stall
        assert 2 * THRESHOLD_S <= seconds < 20 * THRESHOLD_S
        assert slow.error is None


async def test_a_stall_shorter_than_the_threshold_is_not_reported(upstream: Upstream) -> None:
    upstream.on_filter["one"] = blocking(THRESHOLD_S / 2)
    seen = Seen()
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        with StallWatch(THRESHOLD_S, seen):
            for number in range(8):
                upstream.put(number)
                await anyio.sleep(THRESHOLD_S / 4)
            await until(lambda: len(one.events) == 8)
    assert (seen.begun, seen.over) == ([], [])


async def test_a_loop_with_nothing_to_do_does_not_stall() -> None:
    seen = Seen()
    with StallWatch(THRESHOLD_S, seen):
        await anyio.sleep(4 * THRESHOLD_S)
    assert seen.begun == []


async def test_each_stall_is_reported_once_however_long_it_lasts() -> None:
    seen = Seen()
    stalls = 0
    with StallWatch(THRESHOLD_S, seen):
        # On a busy machine the watch may get no processor during a whole stall, and does not see that stall.
        while len(seen.begun) < 2 and stalls < 100:
            await anyio.sleep(THRESHOLD_S)
            time.sleep(4 * THRESHOLD_S)
            stalls += 1
            await anyio.sleep(THRESHOLD_S)
            assert len(seen.begun) <= stalls
        await until(lambda: len(seen.begun) == len(seen.over))
    assert len(seen.begun) == 2


async def test_computing_code_is_told_from_waiting_code(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, lambda: Usage(time.monotonic(), 0.0))
    seen = Seen()
    with StallWatch(THRESHOLD_S, seen):
        await anyio.sleep(THRESHOLD_S)
        time.sleep(3 * THRESHOLD_S)
        await until(lambda: seen.over)
    assert seen.begun[0].is_computing is True


async def test_a_loop_that_is_not_given_the_processor_does_not_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine is overloaded, so the running code is not to blame."""
    says(monkeypatch, lambda: Usage(0.0, time.monotonic()))
    seen = Seen()
    with StallWatch(THRESHOLD_S, seen):
        await anyio.sleep(THRESHOLD_S)
        time.sleep(3 * THRESHOLD_S)
        await anyio.sleep(THRESHOLD_S)
    assert seen.begun == []


async def test_a_stall_that_outlasts_an_overload_is_reported_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end_of_overload = time.monotonic() + 4 * THRESHOLD_S
    says(monkeypatch, lambda: Usage(0.0, min(time.monotonic(), end_of_overload)))
    seen = Seen()
    with StallWatch(THRESHOLD_S, seen):
        await anyio.sleep(THRESHOLD_S)
        began = time.monotonic()
        block(seen)
        took = time.monotonic() - began
        await until(lambda: seen.over)
    (stall,) = seen.begun
    assert "in block" in stall.stack
    # The seconds count from the stall's beginning, not from the end of the overload.
    assert 3 * THRESHOLD_S <= stall.seconds <= took + THRESHOLD_S


async def test_the_usage_of_a_thread_is_measured() -> None:
    measure = usage_of(threading.get_ident(), threading.get_native_id())
    before = measure()
    deadline = time.thread_time() + 0.05
    while time.thread_time() < deadline:
        pass
    after = measure()
    assert before.computing is not None
    assert after.computing is not None
    assert 0.04 < after.computing - before.computing < 1
    if Path("/proc/self/schedstat").exists():
        assert before.queueing is not None
        assert after.queueing is not None
        assert after.queueing - before.queueing >= 0


async def test_code_that_holds_the_interpreters_lock_is_found_when_it_lets_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    says(monkeypatch, lambda: Usage(time.monotonic(), 0.0))
    seen = Seen()
    with StallWatch(0.05, seen):
        await anyio.sleep(0.05)
        pattern, length, took, tries = re.compile("(a+)+b"), 18, 0.0, 0
        # Make the match longer until it takes 0.2 s on this machine. Then repeat it until the watch reports it: the
        # watch may get the interpreter's lock only when the match is over.
        while took < 0.2 or (not seen.begun and tries < 30):
            length += took < 0.2
            tries += took >= 0.2
            seen.begun.clear()
            began = time.monotonic()
            pattern.match("a" * length)
            took = time.monotonic() - began
            await anyio.sleep(0.1)
        await until(lambda: seen.over)
    (stall,) = seen.begun
    assert "test_code_that_holds" in stall.stack
    assert "pattern.match" in stall.stack
    assert stall.is_computing is True


def block(seen: Seen) -> None:
    """Block until the stall is noticed. On a loaded machine the watching thread may run late."""
    give_up_at = time.monotonic() + 30
    while not seen.begun and time.monotonic() < give_up_at:
        time.sleep(2 * THRESHOLD_S)  # the blocking is what the test is about


class Blocking(Watching):
    seen: ClassVar[Seen]


class Alone(Blocking):
    def shared_stream_key(self) -> Hashable:
        return None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await anyio.sleep(THRESHOLD_S)
        block(self.seen)
        yield TriggerEvent({})
        await anyio.sleep_forever()


class SlowlyMade(Blocking):
    def __init__(self, **kwargs: Any) -> None:
        block(self.seen)
        super().__init__(**kwargs)


class SlowProducer(SharedStreamProducer):
    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        await anyio.sleep(THRESHOLD_S)
        block(Blocking.seen)
        yield 1, 1
        await anyio.sleep_forever()

    async def advance(self, batch: object) -> None:
        pass


class SlowlyRead(Blocking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return SlowProducer()


@pytest.mark.rule("14: a member that delays the start of its stream is named in the log")
@pytest.mark.parametrize("kind", [Alone, SlowlyMade, SlowlyRead])
async def test_all_code_of_a_plugin_is_named(kind: type[Blocking], upstream: Upstream) -> None:
    seen = Blocking.seen = Seen()
    async with supervised() as service:
        with StallWatch(THRESHOLD_S, seen):
            await anyio.sleep(THRESHOLD_S)
            kwargs: dict[str, Any] = {"upstream": upstream.name}
            service.manager.add([service.spec(lambda: kind(**kwargs), "asset/name", kwargs)])
            task = asyncio.current_task()
            assert task is not None
            assert "watcher" not in task.get_name()
            await until(lambda: seen.over)
    stall = seen.begun[0]
    if kind is SlowlyRead:
        assert (stall.trigger, stall.stream) == (None, str(("SlowlyRead", upstream.name)))
    else:
        assert (stall.trigger, stall.stream) == ("asset/name", None)
    assert "time.sleep" in stall.stack.splitlines()[-1]


async def test_a_callback_that_blocks_is_reported_without_a_task() -> None:
    seen = Seen()
    with StallWatch(THRESHOLD_S, seen):
        await anyio.sleep(THRESHOLD_S)
        with anyio.fail_after(60):
            # Block several times, because on a loaded machine the watching thread may run too late to see one block.
            while not seen.over:
                asyncio.get_running_loop().call_soon(time.sleep, 2 * THRESHOLD_S)
                await anyio.sleep(THRESHOLD_S)
    assert (seen.begun[0].task, seen.begun[0].trigger) == (None, None)


async def test_the_log_says_both_ends(upstream: Upstream) -> None:
    stall = Stall("watcher[a/w]", "a/w", None, "File …", 0.51, is_computing=False)
    with structlog.testing.capture_logs() as lines:
        LogStalls().began(stall)
        LogStalls().ended(stall, 1.234)
    began, ended = lines
    assert began["event"] == "the event loop stands still"
    assert (began["trigger"], began["seconds"], began["stack"], began["doing"]) == (
        "a/w", 0.51, "File …", "waiting",
    )  # fmt: skip
    assert "[triggerer.isolation]" in began["hint"]
    assert (ended["event"], ended["trigger"], ended["seconds"]) == (
        "the event loop turns again", "a/w", 1.23,
    )  # fmt: skip


async def test_the_watch_ends_at_once_and_leaves_no_thread() -> None:
    started = time.monotonic()
    with StallWatch(30.0):
        await anyio.sleep(0.01)
    with StallWatch(0.02):  # while it waits for an answer
        await anyio.sleep(0.011)
    assert time.monotonic() - started < 2
    assert "triggerer-stall-watch" not in {thread.name for thread in threading.enumerate()}


_STOPPED = """
import sys, time, anyio
from triggerer.streams.supervision.blocked_loop import StallWatch
class Seen:
    def began(self, stall): print("stall", stall.stack, flush=True)
    def ended(self, stall, seconds): pass
async def main():
    # A busy machine may leave a process without a processor for a tenth of a second.
    with StallWatch(0.5, Seen()):
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        await anyio.sleep(1.0)
anyio.run(main)
print("over", flush=True)
"""


def test_a_process_that_was_stopped_has_not_stalled() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STOPPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            os.kill(process.pid, signal.SIGSTOP)
            # The process stays stopped for longer than the watch waits.
            time.sleep(1.2)
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.1)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read() == "over\n"


async def test_streams_go_on_without_noticing_the_watch(upstream: Upstream) -> None:
    seen = Seen()
    with StallWatch(0.5, seen):
        async with supervised(RuntimeSettings()) as service:
            service.host(Fast(upstream.name, "one"), Fast(upstream.name, "two"))
            upstream.put(*range(100))
            await service.settle_down()
            assert len(service.store.payloads) == 200
    assert seen.begun == []
