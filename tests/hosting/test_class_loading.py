"""Trigger classes are loaded outside of the event loop. A stream waits only for its own classes."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from tests.hosting.test_host import CLASSES, LEASE, declare, eventually, running, watchers
from tests.isolation.conftest import until
from tests.store.seeding import count_events
from tests.unit.streams.streams import Acking, Upstream
from triggerer.abc import BaseEventTrigger
from triggerer.hosting import TriggerHost
from triggerer.hosting.class_loader import ClassLoader
from triggerer.hosting.factory import TriggerFactory
from triggerer.hosting.host import HostSettings
from triggerer.processes.own_lease import OwnLease
from triggerer.store.database.transactions import Database
from triggerer.store.events.recorder import EventRecorder
from triggerer.streams import RuntimeContext


class Modules:
    """Loads the classes of `CLASSES` at once, and each other class path after its `release`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._may_end: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def load(self, classpath: str) -> type[BaseEventTrigger]:
        self.begun.append(classpath)
        if classpath in CLASSES:
            return CLASSES[classpath]
        assert self._may_end[classpath].wait(60)
        if classpath == "Interrupting":
            raise KeyboardInterrupt
        return Acking

    def hold(self, *classpaths: str) -> None:
        for classpath in classpaths:
            self._may_end[classpath].clear()

    def release(self, *classpaths: str) -> None:
        for classpath in classpaths:
            self._may_end[classpath].set()


@pytest.fixture
def modules() -> Modules:
    return Modules()


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Upstream:
    return Upstream(f"{request.node.name} (other)")


@asynccontextmanager
async def hosting(
    database: Database, modules: Modules, *, load_timeout: float = 60
) -> AsyncIterator[TriggerHost]:
    recorder = EventRecorder(database, on_fenced=lambda fence: host.mark_fenced(fence))  # noqa: PLW0108
    host = TriggerHost(
        database,
        instance_id="me",
        factory=TriggerFactory(modules.load, load_timeout=timedelta(seconds=load_timeout)),
        runtime=RuntimeContext(recorder, lease=OwnLease(LEASE, margin=1 / 12)),
        settings=HostSettings(
            lease=LEASE,
            heartbeat=timedelta(seconds=0.3),
            retry=timedelta(seconds=0.1),
            drain=timedelta(seconds=2),
        ),
    )
    async with running(host, recorder):
        yield host


@pytest.mark.rule(
    "14: nothing is broadcast before all known members of the stream have joined or failed"
)
async def test_a_stream_waits_for_its_classes_and_others_do_not_wait_for_it(
    database: Database, modules: Modules, upstream: Upstream, other: Upstream
) -> None:
    await declare(database, "slow", upstream, classpath="Slow")
    await declare(database, "fine", upstream)
    await declare(database, "beside", other, stream="other")
    upstream.put(1)
    async with hosting(database, modules) as host:
        other.put(1)
        await until(lambda: other.outcomes() == {1: (1, 0, 0)})
        # This is longer than the lease, so heartbeats must extend it meanwhile.
        await anyio.sleep(LEASE.total_seconds() * 1.5)
        assert list(host.manager.streams) == [("Acking", other.name)]
        assert upstream.producers == []
        modules.release("Slow")
        await until(lambda: upstream.outcomes() == {1: (2, 0, 0)})
        assert len(other.producers) == 1


@pytest.mark.rule(
    "11: a failed trigger is restarted at growing delays, and shown with its error",
    "14: nothing is broadcast before all known members of the stream have joined or failed",
)
async def test_a_stream_opens_without_a_class_that_takes_too_long_which_joins_once_it_is_there(
    database: Database, modules: Modules, upstream: Upstream
) -> None:
    await declare(database, "slow", upstream, classpath="Slow")
    await declare(database, "fine", upstream)
    upstream.put(1)
    async with hosting(database, modules, load_timeout=0.3):
        await until(lambda: upstream.outcomes() == {1: (1, 1, 0)})

        async def is_shown() -> bool:
            state, error, _ = (await watchers(database))["slow"]
            return state == "failing" and "has been loading for more than 0.3 s" in (error or "")

        await eventually(is_shown)
        # The trigger was tried again meanwhile, but the loading did not begin a second time.
        assert modules.begun.count("Slow") == 1
        modules.release("Slow")

        async def runs() -> bool:
            return (await watchers(database))["slow"][0] == "running"

        await eventually(runs)
        upstream.put(2)
        await until(lambda: upstream.outcomes().get(2) == (2, 0, 0))


@pytest.mark.rule("11: a failed trigger is restarted at growing delays, and shown with its error")
async def test_classes_are_loaded_anew_when_a_stream_restarts(
    database: Database, modules: Modules, upstream: Upstream
) -> None:
    modules.release("Slow")
    await declare(database, "one", upstream, classpath="Slow")
    async with hosting(database, modules, load_timeout=0.3):
        upstream.put(1)
        await until(lambda: upstream.outcomes() == {1: (1, 0, 0)})
        modules.hold("Slow")
        upstream.fail(ConnectionError("away"))
        upstream.put(2)
        # Loading the class again exceeds the time limit. Without the class, the stream is not opened again.
        await until(lambda: modules.begun.count("Slow") == 2)
        await anyio.sleep(1)
        assert len(upstream.producers) == 1
        modules.release("Slow")
        await until(lambda: upstream.outcomes().get(2) == (1, 0, 0))


@pytest.mark.rule("9: a change of a watcher's arguments resolves no message")
async def test_a_trigger_goes_on_until_the_class_of_the_one_that_replaces_it_is_there(
    database: Database, modules: Modules, upstream: Upstream
) -> None:
    await declare(database, "one", upstream, only=[1])
    async with hosting(database, modules) as host:
        (stream,) = host.manager.streams.values()
        await declare(database, "one", upstream, classpath="Slow", only=[2])
        await until(lambda: "Slow" in modules.begun)
        upstream.put(1)
        await until(lambda: upstream.outcomes() == {1: (1, 0, 0)})
        assert await count_events(database) == 1
        modules.release("Slow")
        await until(lambda: [m.spec.kwargs["only"] for m in stream.members] == [[2]])
        upstream.put(2)
        await until(lambda: upstream.outcomes().get(2) == (1, 0, 0))
        assert await count_events(database) == 2


async def test_a_service_stops_while_a_class_is_being_loaded(
    database: Database, modules: Modules, upstream: Upstream
) -> None:
    await declare(database, "slow", upstream, classpath="Slow")
    with anyio.fail_after(30):
        async with hosting(database, modules):
            await until(lambda: modules.begun == ["Slow"])
    assert upstream.producers == []
    modules.release("Slow")


async def test_classes_are_loaded_in_order_and_one_that_hangs_is_given_up(
    modules: Modules,
) -> None:
    loader = ClassLoader(modules.load, patience=timedelta(seconds=0.2))
    first, second, third = (loader.begin(path) for path in ("Slow", "Slower", "Acking"))
    assert loader.begin("Slower") is second
    await third.wait_until_settled()
    assert modules.begun == ["Slow", "Slower", "Acking"]
    assert third.result() is Acking
    for load in (first, second):
        with pytest.raises(Exception, match=r"has been loading for more than 0.2 s"):
            load.result()
    assert loader.begin("Slow") is first
    modules.release("Slow", "Slower")
    with anyio.fail_after(20):
        while (again := loader.begin("Slow")) is first:  # noqa: ASYNC110 (a thread ends it)
            await anyio.sleep(0.01)
        await again.wait_until_settled()
    assert again.result() is Acking


async def test_classes_for_which_no_thread_can_be_had_fail_for_now(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = ClassLoader(modules.load, patience=timedelta(seconds=60))
    first = loader.begin("Slow")
    waiting = [loader.begin(f"Other{number}") for number in range(3000)]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    modules.release("Slow")
    for load in (first, *waiting):
        await load.wait_until_settled()
    assert first.result() is Acking
    with pytest.raises(Exception, match="Other2999 cannot be loaded now: can't start new thread"):
        waiting[-1].result()


async def test_a_module_that_ends_its_thread_only_fails(modules: Modules) -> None:
    modules.release("Interrupting")
    load = ClassLoader(modules.load, patience=timedelta(seconds=60)).begin("Interrupting")
    await load.wait_until_settled()
    with pytest.raises(Exception, match="Interrupting cannot be loaded: KeyboardInterrupt"):
        load.result()
