"""The conformance suite for triggers: the rules that let the service store, recreate and run them."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import Any, ClassVar
from unittest import SkipTest

import anyio

from triggerer.abc import AdvanceItem, BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.errors import BrokerError, ConfigurationError, PluginError
from triggerer.plugins import canonical_kwargs, stream_digest
from triggerer.streams.delivery.selection import selector_of
from triggerer.streams.supervision.delivery_facts import facts_of
from triggerer.testing.conformance.features import case
from triggerer.testing.conformance.filtering import (
    GivenStream,
    RejectionCount,
    cancel_soon,
    filtered,
    runtime_around,
)
from triggerer.testing.harness import StreamHarness

_DIGEST_OF = """\
import json, sys
from importlib import import_module
from triggerer.plugins import stream_digest
path, module, name, arguments = json.loads(sys.stdin.read())
sys.path[:0] = path
cls = import_module(module)
for part in name.split("."):
    cls = getattr(cls, part)
print(stream_digest(cls(**arguments).shared_stream_key()))
"""


class TriggerConformance:
    """Subclass this class as `TestMyTrigger` and implement the hooks. The suite needs no broker.

    The suite also checks the trigger's arguments and its stream key. The filter must:

    - be an async generator
    - yield all events derived from a raw event before it pulls the next raw event
    - not swallow an error of its stream
    - end when it is cancelled
    """

    features: ClassVar[frozenset[str]] = frozenset()
    """Always empty, because the cases of triggers need no feature."""
    patience_s: ClassVar[float] = 10.0
    """How many seconds a case waits for something to happen before it fails."""

    # Hooks

    async def setup(self) -> None:
        """Before each case."""

    async def teardown(self) -> None:
        """After each case, whether it passed or failed."""

    def new_trigger(self) -> BaseEventTrigger:
        """A trigger of the class under test, with equal arguments in each call."""
        raise NotImplementedError

    def siblings(self) -> Sequence[BaseEventTrigger]:
        """Triggers that share the stream: an equal key, but other arguments."""
        return ()

    def strangers(self) -> Sequence[BaseEventTrigger]:
        """Triggers that read another upstream, and so must have another key."""
        return ()

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        """Raw events as the stream would yield them, each with the number of `TriggerEvent`s that it causes.

        If the trigger has a stream, at least one raw event must cause an event. Also return raw events that the filter
        skips, with the number 0. The suite calls this hook again each time it runs a filter.
        """
        return ()

    async def run_case(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run one case between `setup` and `teardown`."""
        try:
            await self.setup()
            await body()
        finally:
            await self.teardown()

    # Serialisation

    @case()
    async def test_it_serialises_the_same_way_each_time(self) -> None:
        trigger = self.new_trigger()
        classpath, arguments = trigger.serialize()
        first = canonical_kwargs(arguments)
        again, more = trigger.serialize()
        assert (again, canonical_kwargs(more)) == (classpath, first)
        assert canonical_kwargs(self.new_trigger().serialize()[1]) == first, "a second trigger"

    @case()
    async def test_its_arguments_survive_json(self) -> None:
        arguments = self.new_trigger().serialize()[1]
        text = canonical_kwargs(arguments)
        # Compare texts: a tuple comes back from JSON as a list, which does not equal the tuple.
        assert canonical_kwargs(json.loads(text)) == text

    @case()
    async def test_it_can_be_made_again_from_its_arguments(self) -> None:
        trigger = self.new_trigger()
        again = _made_again(trigger)
        assert _identity(again) == _identity(trigger)
        assert again.shared_stream_key() == trigger.shared_stream_key()

    @case()
    async def test_its_class_path_leads_to_its_class(self) -> None:
        trigger = self.new_trigger()
        classpath = trigger.serialize()[0]
        module, name = _split(classpath)
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        assert found is type(trigger)

    # Keys

    @case()
    async def test_equal_triggers_have_equal_keys(self) -> None:
        # Keep both triggers alive, so that their addresses differ: keys that contain addresses must not look equal.
        triggers = [self.new_trigger(), self.new_trigger()]
        one, two = (trigger.shared_stream_key() for trigger in triggers)
        assert one == two
        assert hash(one) == hash(two)
        assert stream_digest(one) == stream_digest(two)

    @case()
    async def test_its_key_is_the_same_in_every_process(self) -> None:
        trigger = self.new_trigger()
        expected = stream_digest(trigger.shared_stream_key())
        classpath, arguments = trigger.serialize()
        asked = json.dumps([[path or "." for path in sys.path], *_split(classpath), arguments])
        done: list[subprocess.CompletedProcess[bytes]] = []

        async def ask(seed: str) -> None:
            done.append(
                await anyio.run_process(
                    [sys.executable, "-c", _DIGEST_OF],
                    input=asked.encode(),
                    env={**os.environ, "PYTHONHASHSEED": seed},
                    check=False,
                )
            )

        async with anyio.create_task_group() as tasks:
            for seed in ("1", "2"):  # a set in the key has another order under another hash seed
                tasks.start_soon(ask, seed)
        for process in done:
            assert process.returncode == 0, process.stderr.decode()
            assert process.stdout.decode().strip() == expected, "the key differs in another process"

    @case()
    async def test_siblings_share_its_stream_and_strangers_do_not(self) -> None:
        trigger = self.new_trigger()
        key, name = trigger.shared_stream_key(), trigger.describe_stream()
        for sibling in self.siblings():
            assert key is not None
            assert sibling.shared_stream_key() == key, sibling.serialize()
            assert sibling.describe_stream() == name, "siblings give their stream two names"
            assert stream_digest(sibling.shared_stream_key()) == stream_digest(key)
        for stranger in self.strangers():
            other = stranger.shared_stream_key()
            assert other is None or other != key, stranger.serialize()

    # The guarantee

    @case()
    async def test_its_description_of_its_source_is_valid(self) -> None:
        try:
            await facts_of(self.new_trigger(), ask=False)
        except ConfigurationError as error:
            raise SkipTest(
                f"describe_delivery() needs a connection; call install_connections: {error}"
            ) from None
        except BrokerError as error:
            raise AssertionError(
                f"describe_delivery(ask=False) must not ask the source, but it did: {error}"
            ) from error
        except PluginError as error:
            raise AssertionError(str(error)) from error

    # Start and end

    @case()
    async def test_cleanup_before_the_first_run_is_harmless(self) -> None:
        await self.new_trigger().cleanup()

    @case()
    async def test_it_is_an_async_generator(self) -> None:
        trigger = self.new_trigger()
        events = (
            trigger.run()
            if trigger.shared_stream_key() is None
            else filtered(trigger, GivenStream())
        )
        assert inspect.isasyncgen(events), "write it as `async def` with `yield`"
        await events.aclose()

    @case()
    async def test_it_ends_when_it_is_cancelled(self) -> None:
        trigger = _made_again(self.new_trigger())
        if trigger.shared_stream_key() is None:
            await self._end_by_cancellation(trigger.run())
            return
        with runtime_around():
            await self._end_by_cancellation(filtered(trigger, GivenStream()))
            firing = [raw for raw, count in self.raw_events() if count]
            await self._end_by_cancellation(filtered(trigger, GivenStream(firing)))

    async def _end_by_cancellation(self, events: AsyncIterator[TriggerEvent]) -> None:
        assert isinstance(events, AsyncGenerator)
        with anyio.move_on_after(self.patience_s) as patience, anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_soon, scope)
                async with aclosing(events):
                    async for _ in events:
                        pass
                assert scope.cancel_called, "the filter returned while its stream was still open"
        assert not patience.cancelled_caught, "the filter continued although it was cancelled"

    # Filter rules

    @case()
    async def test_all_events_of_a_raw_event_are_yielded_before_the_next_pull(
        self,
    ) -> None:
        for number, (raw, count) in enumerate(self._raw_events()):
            derived = await self._derive([raw])
            assert len(derived[0]) == count, f"raw event {number}: {derived[0]}"
        together = await self._derive([raw for raw, _ in self._raw_events()])
        assert [len(one) for one in together] == [count for _, count in self._raw_events()]

    @case()
    async def test_its_events_can_be_stored(self) -> None:
        for one in await self._derive([raw for raw, _ in self._raw_events()]):
            for event in one:
                assert isinstance(event, TriggerEvent)
                json.dumps(event.payload, allow_nan=False)

    @case()
    async def test_its_selector_leaves_out_only_events_that_the_filter_ignores(self) -> None:
        trigger = self.new_trigger()
        selector = selector_of(trigger)
        if selector is None:
            # Without a selector the filter sees every raw event.
            return
        for number, (raw, _) in enumerate(self._raw_events()):
            try:
                is_shown = selector.read(raw) in selector.values
            except Exception:  # noqa: BLE001  (an event that the selector cannot read goes to every filter)
                is_shown = True
            if not is_shown:
                runtime = RejectionCount()
                assert await self._derive([raw], runtime) == [[]], f"raw event {number} fires"
                assert not runtime.rejections, f"the filter would reject raw event {number}"

    @case()
    async def test_an_error_of_the_stream_comes_out_of_it(self) -> None:
        raws = [raw for raw, _ in self._raw_events()]
        for pulled in range(len(raws) + 1):
            error = ConnectionResetError("the stream ended")
            trigger = _made_again(self.new_trigger())
            caught: BaseException | None = None
            try:
                with runtime_around(), anyio.fail_after(self.patience_s):
                    async with aclosing(
                        filtered(trigger, GivenStream(raws[:pulled], error))
                    ) as events:
                        async for _ in events:
                            pass
            except Exception as raised:  # noqa: BLE001  (checked below)
                caught = raised
            assert _has_cause(caught, error), f"after {pulled} events: {caught!r}"

    @case()
    async def test_the_runtime_hosts_it_and_every_event_is_resolved(self) -> None:
        raws = self._raw_events()
        advanced: list[AdvanceItem] = []

        class Producer(SharedStreamProducer):
            async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
                for number, (raw, _) in enumerate(raws):
                    yield raw, number
                await anyio.sleep_forever()

            async def advance(self, batch: Sequence[AdvanceItem]) -> None:
                advanced.extend(batch)

        def create(cls: type, kwargs: dict[str, Any]) -> SharedStreamProducer:
            return Producer()

        trigger = self.new_trigger()
        fed = type(
            type(trigger).__name__,
            (type(trigger),),
            {"create_shared_stream_producer": classmethod(create)},
        )
        async with StreamHarness() as streams:
            view = await streams.add(fed(**trigger.serialize()[1]))
            await streams.quiesce()
            assert view.error is None, f"the trigger ended: {view.error!r}"
            assert len(view.events) == sum(count for _, count in raws)
        assert [item.broker_payload for item in advanced] == list(range(len(raws)))
        assert not any(item.outcome.failed for item in advanced)

    def _raw_events(self) -> Sequence[tuple[Any, int]]:
        raws = self.raw_events()
        if self.new_trigger().shared_stream_key() is None:
            raise SkipTest(f"the trigger of {type(self).__name__} lacks a shared stream")
        assert any(count for _, count in raws), "no raw event of raw_events() causes an event"
        return raws

    async def _derive(
        self, raws: Sequence[Any], runtime: RejectionCount | None = None
    ) -> list[list[TriggerEvent]]:
        """The trigger events that a new filter yields for each raw event, before it pulls the next."""
        trigger = _made_again(self.new_trigger())
        stream = GivenStream(raws)
        derived: list[list[TriggerEvent]] = [[] for _ in raws]
        with runtime_around(runtime), anyio.fail_after(self.patience_s):
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    async with aclosing(filtered(trigger, stream)) as events:
                        async for event in events:
                            assert stream.pulled, "the filter yielded before its first pull"
                            derived[stream.pulled - 1].append(event)

                tasks.start_soon(run)
                await stream.exhausted.wait()
                tasks.cancel_scope.cancel()
        return derived


def _made_again(trigger: BaseEventTrigger) -> BaseEventTrigger:
    return type(trigger)(**json.loads(canonical_kwargs(trigger.serialize()[1])))


def _identity(trigger: BaseEventTrigger) -> tuple[str, str]:
    classpath, arguments = trigger.serialize()
    return classpath, canonical_kwargs(arguments)


def _split(classpath: str) -> tuple[str, str]:
    """The module and the class name of a class path. The class may be nested."""
    parts = classpath.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            import_module(module)
        except ModuleNotFoundError:
            continue
        return module, ".".join(parts[length:])
    raise AssertionError(f"no module of {classpath!r} can be imported")


def _has_cause(raised: BaseException | None, error: BaseException) -> bool:
    while raised is not None:
        if raised is error:
            return True
        raised = raised.__cause__ or raised.__context__
    return False
