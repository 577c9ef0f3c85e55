"""An isolated trigger's blocking call stops no other trigger, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import structlog

from tests.isolation import triggers
from tests.isolation.conftest import ROOT, isolate_in, notes_of, until, watcher_threads
from tests.isolation.processes import isolated_processes
from tests.isolation.test_rules import values
from tests.isolation.triggers import Deaf, MadeHereOnly, Obeying, Unportable
from tests.services.process import lives
from tests.unit.streams.streams import Upstream
from tests.unit.streams.supervised import Store
from triggerer.domain.events import EventSource, WatcherRef
from triggerer.errors import PluginError
from triggerer.isolation import Isolation, IsolationSettings, Placement
from triggerer.isolation.thread import TriggerThread
from triggerer.streams import Manager, Member, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.streams.supervision.blocked_loop import Stall, StallWatch
from triggerer.testing import StreamHarness

ISOLATED = pytest.mark.parametrize("placement", ["thread", "process"])


class Seen:
    def __init__(self, on_stall: Callable[[], None] = lambda: None) -> None:
        self.stalls: list[Stall] = []
        self._on_stall = on_stall

    def began(self, stall: Stall) -> None:
        self.stalls.append(stall)
        self._on_stall()

    def ended(self, stall: Stall, seconds: float) -> None:
        pass


@asynccontextmanager
async def restarting(store: Store) -> AsyncIterator[Manager]:
    """The runtime as the service uses it, with delays that a test can wait for."""
    context = RuntimeContext(
        store,
        settings=RuntimeSettings(close_timeout=5),
        restart_first=0.05,
        restart_longest=0.2,
    )
    async with Manager(context) as manager:
        yield manager


def host(
    manager: Manager, isolation: Isolation, placement: str, upstream: Upstream, notes: Path
) -> Member:
    kwargs = {"upstream": upstream.name, "notes": str(notes)}
    spec = TriggerSpec(
        name="one",
        make=lambda: isolate_in(isolation, placement)(Obeying, **kwargs),
        kwargs=kwargs,
        source=EventSource((WatcherRef(1, 1),), None),
        stream_id="stream",
    )
    return manager.add([spec])[0]


def obeying(isolation: Isolation, upstream: Upstream, notes: Path, where: str = "process") -> Any:
    """Return an isolated trigger that obeys the words in events."""
    return isolate_in(isolation, where)(Obeying, upstream=upstream.name, notes=str(notes))


@ISOLATED
async def test_siblings_go_on_while_one_blocks(
    placement: Placement, isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    isolate, seen = isolate_in(isolation, placement), Seen()
    kwargs = {"upstream": upstream.name, "notes": str(tmp_path)}
    async with isolation, StreamHarness() as streams:
        with StallWatch(0.3, seen):
            blocking = await streams.add(isolate(Obeying, **kwargs))
            beside = await streams.add(Deaf(**kwargs, name="beside"))
            upstream.put((0, "1"))
            await until(lambda: upstream.outcomes() == {(0, "1"): (2, 0, 0)})
            upstream.put((1, "block"))
            await until(lambda: notes_of(tmp_path) == ["blocks"])
            for number in range(2, 50):
                upstream.put((number, "1"))
                await until(lambda number=number: values(beside)[-1] == number)
            await anyio.sleep(0.5)  # longer than the threshold
            assert values(blocking) == [0]
            assert len(upstream.outcomes()) == 1
            (tmp_path / "go").touch()
            await until(lambda: len(upstream.outcomes()) == 50)
            assert values(blocking) == values(beside) == list(range(50))
    assert seen.stalls == []


async def test_on_the_services_loop_the_same_filter_stalls_its_sibling(
    upstream: Upstream, tmp_path: Path
) -> None:
    """This proves that the tests of isolated filters would notice a stall."""
    # The blocking call ends only when the `StallWatch` reports a stall. So even on a busy machine,
    # the call lasts long enough for the watch to see it.
    seen = Seen((tmp_path / "go").touch)
    kwargs = {"upstream": upstream.name, "notes": str(tmp_path)}
    async with StreamHarness() as streams:
        with StallWatch(0.2, seen):
            await streams.add(Obeying(**kwargs))
            beside = await streams.add(Deaf(**kwargs, name="beside"))
            upstream.put((1, "block"), (2, "1"))
            await until(lambda: values(beside) == [1, 2])
    assert [stall.trigger for stall in seen.stalls] == ["Obeying#1"]
    assert "in obey" in seen.stalls[0].stack


@ISOLATED
async def test_each_event_is_told_at_once_though_the_next_one_blocks(
    placement: Placement, isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    """The filter gets three messages together, and never lets its loop run between them."""
    async with isolation, StreamHarness() as streams:
        one = await streams.add(obeying(isolation, upstream, tmp_path, placement))
        upstream.put((1, "1"), (2, "2"), (3, "block"))
        await until(lambda: values(one) == [1, 2, 2])
        await until(lambda: set(upstream.outcomes()) == {(1, "1"), (2, "2")})
        await until(lambda: notes_of(tmp_path) == ["blocks"])
        (tmp_path / "go").touch()
        await until(lambda: len(upstream.outcomes()) == 3)


async def test_a_blocked_process_is_killed(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness(ack_timeout=60) as streams:
        one = await streams.add(obeying(isolation, upstream, tmp_path))
        upstream.put((1, "block"))
        await until(lambda: notes_of(tmp_path))
        assert len(isolated_processes()) == 1
        await streams.sleep(60)
        await until(lambda: one.error)
        await until(lambda: not isolated_processes())
        await until(lambda: upstream.outcomes() == {(1, "block"): (0, 1, 0)})


async def test_a_blocked_thread_is_left_behind_shown_and_not_followed_by_another(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with isolation, restarting(Store()) as manager:
            one = host(manager, isolation, "thread", upstream, tmp_path)
            upstream.put((1, "block"))
            await until(lambda: notes_of(tmp_path) == ["blocks"])
            assert one.subscriber is not None
            (stream,) = manager.streams.values()
            assert stream.group is not None
            stream.group.subscribers.fail(one.subscriber, PluginError("too slow"))
            await until(lambda: "still blocked" in str(one.error))
            assert "in obey" in str(one.error)
            (blocked,) = watcher_threads()
            await until(lambda: upstream.outcomes() == {(1, "block"): (0, 1, 0)})
            (tmp_path / "go").touch()
            # Wait until the watcher has a new thread. On its old, blocked thread it would fail the next message.
            await until(lambda: set(watcher_threads()) - {blocked})
            upstream.put((2, "1"))
            await until(lambda: upstream.outcomes().get((2, "1")) == (1, 0, 0))
            (after,) = watcher_threads()
            assert after is not blocked
    (left,) = [line for line in lines if line["event"] == "a thread is left behind, blocked"]
    assert left["trigger"] == "one"
    assert "in obey" in left["stack"]


async def test_nothing_is_left_of_a_thread_that_cannot_be_started_to_clean_up(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with isolation:
        make = isolate_in(isolation, "thread")
        trigger = make(Obeying, "refused", upstream="none", notes=str(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with suppress(PluginError):
                await trigger.cleanup()
        gc.collect()
        threads = [one for one in gc.get_objects() if isinstance(one, TriggerThread)]
        assert "refused" not in [one.name for one in threads]
        # Later, threads can be started again.
        await trigger.cleanup()
    assert len(notes_of(tmp_path)) == 1


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (lambda process: process.kill(), "was killed by SIGKILL"),
        (lambda process: process.send_signal(signal.SIGSEGV), "was killed by SIGSEGV"),
        (lambda process: process.send_signal(40), "was killed by signal 40"),
        # The interrupt of the trigger's process must not end this process.
        (lambda process: process.send_signal(signal.SIGINT), "KeyboardInterrupt"),
        (None, "ended with exit code 3"),
    ],
    ids=["killed", "crashed", "real-time signal", "interrupted", "exited"],
)
async def test_a_process_that_dies_is_shown_and_started_again(
    end: Any, text: str, isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, restarting(Store()) as manager:
        one = host(manager, isolation, "process", upstream, tmp_path)
        upstream.put((1, "1"))
        await until(lambda: upstream.outcomes() == {(1, "1"): (1, 0, 0)})
        (first,) = isolated_processes()
        errors: list[str] = []
        with structlog.testing.capture_logs() as lines:
            if end is None:
                upstream.put((2, "exit"))
            else:
                end(first)  # while the process awaits the stream
            await until(lambda: any(line["event"] == "trigger failed" for line in lines))
            errors = [line["error"] for line in lines if line["event"] == "trigger failed"]
        assert text in errors[0]
        await until(lambda: one.subscriber is not None)
        upstream.put((3, "1"))
        await until(lambda: upstream.outcomes().get((3, "1")) == (1, 0, 0))
        (second,) = isolated_processes()
        assert second.pid != first.pid
        if end is None:
            await until(lambda: upstream.outcomes().get((2, "exit")) == (0, 1, 0))


async def test_a_process_that_dies_is_noticed_though_its_fork_holds_the_channel(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(obeying(isolation, upstream, tmp_path))
        upstream.put((1, "fork and exit"))
        await until(lambda: one.error)
        assert str(one.error) == "The process of one ended with exit code 3"


async def test_child_processes_of_a_process_end_with_it(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        await streams.add(obeying(isolation, upstream, tmp_path))
        upstream.put((1, "start a child"))
        await until(lambda: len(notes_of(tmp_path)) == 1)
        (pid,) = notes_of(tmp_path)
        assert psutil.pid_exists(int(pid))
    await until(lambda: not lives(int(pid)))


_SERVICE = """
import sys, anyio
from tests.isolation import triggers
from tests.unit.streams.streams import Upstream
from triggerer.isolation import Isolation, IsolationSettings
from triggerer.testing import StreamHarness

async def main():
    upstream = Upstream("doomed")
    settings = IsolationSettings(allowed_modules=(triggers.HERE,))
    async with Isolation(settings) as isolation, StreamHarness() as streams:
        cls = isolation.proxy_class(
            triggers.Obeying, "process", classpath=triggers.HERE + ".Obeying", name="one"
        )
        await streams.add(cls(upstream="doomed", notes=sys.argv[1]))
        upstream.put((1, "block"))
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_a_blocked_process_does_not_outlive_the_service(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SERVICE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    ) as service:
        try:
            await until(lambda: notes_of(tmp_path) == ["blocks"])
            (child,) = isolated_processes(psutil.Process(service.pid))
        finally:
            service.kill()
    await until(lambda: not lives(child.pid))


# Triggers that cannot run in a process


async def test_a_raw_event_that_cannot_be_pickled_fails_its_trigger_and_what_came_before_it_not(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(obeying(isolation, upstream, tmp_path))
        lock = threading.Lock()
        upstream.put((1, "1"), (2, "1"), (3, lock), (4, "1"))
        await until(lambda: one.error)
        assert isinstance(one.error, PluginError)
        assert "raw event of one (tuple) cannot be handed to another process" in str(one.error)
        assert '"thread"' in str(one.error)
        await until(lambda: (3, lock) in upstream.outcomes())
        assert upstream.outcomes()[3, lock] == (0, 1, 0)
        assert upstream.outcomes()[1, "1"] == upstream.outcomes()[2, "1"] == (1, 0, 0)


async def test_a_payload_that_cannot_be_pickled_fails_its_trigger(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(
            isolate_in(isolation, "process")(
                Unportable, upstream=upstream.name, notes=str(tmp_path)
            )
        )
        upstream.put((1, "1"))
        await until(lambda: one.error)
        assert isinstance(one.error, PluginError)
        assert "the payload of an event of one (dict) cannot be handed to" in str(one.error)
        await until(lambda: upstream.outcomes() == {(1, "1"): (0, 1, 0)})


async def test_an_error_that_cannot_be_pickled_is_told_by_its_text(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(obeying(isolation, upstream, tmp_path))
        upstream.put((1, "raise stubbornly"))
        await until(lambda: one.error)
        assert isinstance(one.error, PluginError)
        assert str(one.error) == "Stubborn: boom"
        assert "in obey" in one.error.__notes__[0]


async def test_a_class_that_may_not_be_loaded_is_not_loaded_there_either(
    monkeypatch: pytest.MonkeyPatch, upstream: Upstream, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    isolation = Isolation(IsolationSettings())
    async with isolation, StreamHarness() as streams:
        one = await streams.add(obeying(isolation, upstream, tmp_path))
        upstream.put((1, "1"))
        await until(lambda: one.error)
        assert f"{triggers.HERE}.Obeying must not be loaded" in str(one.error)


async def test_a_trigger_that_cannot_be_made_there_says_why(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "pid").write_text(str(os.getpid()))
    async with isolation, StreamHarness() as streams:
        one = await streams.add(
            isolate_in(isolation, "process")(
                MadeHereOnly, upstream=upstream.name, notes=str(tmp_path)
            )
        )
        upstream.put((1, "1"))
        await until(lambda: one.error)
        assert isinstance(one.error, ValueError)
        assert str(one.error) == "not here"


async def test_sys_exit_ends_the_trigger_and_nothing_else(
    isolation: Isolation, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(obeying(isolation, upstream, tmp_path, "thread"))
        upstream.put((1, "sys.exit"))
        await until(lambda: one.error)
        assert "called sys.exit(4)" in str(one.error)


# Which triggers are isolated


@pytest.mark.parametrize(
    ("placements", "expected"),
    [
        ({}, None),
        ({"other.Class": "thread"}, None),
        ({"a.Class": "thread"}, "thread"),
        ({"asset/w": "process"}, "process"),
        ({"asset/second": "process", "a.Class": "thread"}, "process"),
    ],
)
def test_triggers_are_isolated_by_class_or_by_watcher(
    placements: dict[str, Placement], expected: Placement | None
) -> None:
    isolation = Isolation(IsolationSettings(placements))
    assert isolation.placement_of("a.Class", ["asset/w", "asset/second"]) == expected
