"""Plugin code that cancels its tasks, or raises odd errors: it ends itself, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from tests.unit.streams.streams import Acking, Alone, Producer, Upstream
from tests.unit.streams.supervised import forever, supervised
from triggerer.abc import AckTimeout, BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.errors import GroupEnded
from triggerer.processes.signals import handling_stop_signals
from triggerer.streams import MemberState
from triggerer.testing import StreamHarness


class Panic(BaseException):
    """An error that is no `Exception`, so `except Exception` misses it. Some native libraries raise such errors."""


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancel_and_wait() -> None:
    cancel_own_task()
    await asyncio.sleep(0)


async def cancel_and_go_on() -> None:
    """Cancel the current task and swallow the cancellation, as timeouts from before Python 3.11 do.

    The task's `cancelling()` stays above zero.
    """
    with suppress(asyncio.CancelledError):
        await cancel_and_wait()


async def cancel_and_return() -> None:
    cancel_own_task()


async def cancel_and_raise() -> None:
    cancel_own_task()
    raise OSError("no")


# A task that is cancelled by the code that it runs


@pytest.mark.rule(
    "11: a `BaseException`, or code that cancels its own task, harms no other trigger"
)
@pytest.mark.parametrize("cancel", [cancel_and_wait, cancel_and_raise])
async def test_a_filter_that_cancels_its_own_task_fails_alone(
    upstream: Upstream, cancel: Callable[[], Any]
) -> None:
    async def act(event: Any) -> None:
        if event == "bad":
            await cancel()

    upstream.on_filter["one"] = act
    async with supervised() as service:
        one, two = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two"))
        upstream.put("bad")
        await service.settle_down()
        assert (one.state, two.state) == (MemberState.FAILING, MemberState.RUNNING)
        await service.pass_time(2)
        assert one.state is MemberState.RUNNING
        upstream.put("good")
        await service.settle_down()
        assert upstream.outcomes() == {"bad": (1, 1, 0), "good": (2, 0, 0)}
        assert len(upstream.producers) == 1


async def test_a_filter_with_a_cancellation_left_standing_times_out_alone(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        await cancel_and_go_on()
        await forever()

    upstream.on_filter["one"] = act
    async with supervised() as service:
        one, _ = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two"))
        upstream.put("stuck")
        await service.pass_time(300)
        assert (one.state, type(one.error)) == (MemberState.FAILING, AckTimeout)
        await service.pass_time(2)
        assert one.state is MemberState.RUNNING
        assert upstream.outcomes() == {"stuck": (1, 1, 0)}
        assert len(upstream.producers) == 1


async def test_a_filter_with_a_cancellation_left_standing_leaves_alone(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        await cancel_and_go_on()
        await forever()

    upstream.on_filter["one"] = act
    async with supervised() as service:
        one, two = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two"))
        upstream.put(0)
        await service.settle_down()
        service.manager.remove(one, on_purpose=True)
        await service.settle_down()
        upstream.put(1)
        await service.settle_down()
        assert upstream.outcomes() == {0: (2, 0, 0), 1: (1, 0, 0)}
        assert two.state is MemberState.RUNNING
        assert len(upstream.producers) == 1


class CancelsInCleanup(Acking):
    async def cleanup(self) -> None:
        if self.name == "one":
            await cancel_and_return()


async def test_a_cleanup_that_cancels_its_own_task_harms_no_sibling(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        if event == "bad":
            raise OSError("no")

    upstream.on_filter["one"] = act
    async with supervised() as service:
        one, _ = service.host(
            CancelsInCleanup(upstream.name, "one"), CancelsInCleanup(upstream.name, "two")
        )
        upstream.put("bad")
        await service.pass_time(2)
        assert one.state is MemberState.RUNNING
        assert len(upstream.producers) == 1


@pytest.mark.rule("6: producer code that cancels its own task ends the group")
@pytest.mark.parametrize("cancel", [cancel_and_wait, cancel_and_return, cancel_and_raise])
async def test_an_advance_that_cancels_its_own_task_ends_the_group_loudly(
    upstream: Upstream, cancel: Callable[[], Any]
) -> None:
    async def on_advance(batch: Any) -> None:
        if batch[0].broker_payload[0] == "bad":
            await cancel()

    upstream.on_advance = on_advance
    async with supervised() as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put("bad")
        await service.settle_down()
        assert (one.state, type(one.error)) == (MemberState.FAILING, GroupEnded)
        await service.pass_time(2)
        upstream.put("good")
        await service.settle_down()
        assert upstream.outcomes()["good"] == (1, 0, 0)
        assert len(upstream.producers) == 2


class CancellingProducer(Producer):
    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        async for item in super().open_stream():
            if item[0] == "bad":
                await cancel_and_wait()
            yield item


class FromCancellingProducer(Acking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return CancellingProducer(Upstream.known[kwargs["upstream"]])


@pytest.mark.rule("6: producer code that cancels its own task ends the group")
async def test_a_poll_that_cancels_its_own_task_ends_the_group_loudly(upstream: Upstream) -> None:
    async with supervised() as service:
        (one,) = service.host(FromCancellingProducer(upstream.name))
        upstream.put("bad")
        await service.settle_down()
        assert (one.state, type(one.error)) == (MemberState.FAILING, GroupEnded)
        await service.pass_time(2)
        assert one.state is MemberState.RUNNING
        assert len(upstream.producers) == 2


@pytest.mark.rule(
    "11: a `BaseException`, or code that cancels its own task, harms no other trigger"
)
@pytest.mark.parametrize("cancel", [cancel_and_wait, cancel_and_raise])
async def test_a_trigger_without_a_stream_that_cancels_its_own_task_fails_alone(
    upstream: Upstream, cancel: Callable[[], Any]
) -> None:
    async def act(value: Any) -> None:
        if value == "bad":
            await cancel()

    upstream.on_filter["alone"] = act
    async with supervised() as service:
        (alone,) = service.host(Alone(upstream.name, "alone"))
        upstream.put("bad", "good")
        await service.settle_down()
        assert alone.state is MemberState.FAILING
        await service.pass_time(2)
        assert alone.state is MemberState.RUNNING
        assert service.store.payloads == [{"value": "good"}]


@pytest.mark.rule(
    "11: a `BaseException`, or code that cancels its own task, harms no other trigger"
)
async def test_a_payload_that_raises_leaves_no_room_taken_at_the_limit_of_pending_events(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise Panic("while the payload is encoded")

    async with supervised() as service:
        (alone,) = service.host(Alone(upstream.name, "alone"))
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "submit_nowait", refuse)
            upstream.put("bad")
            await service.settle_down()
        assert alone.state is MemberState.FAILING
        assert alone.pending.count == 0
        await service.pass_time(2)
        upstream.put("good")
        await service.settle_down()
        assert service.store.payloads == [{"value": "good"}]


# Errors that are no `Exception`

ERRORS = [Panic("at the disco"), SystemExit(2), GeneratorExit()]


def said_of(error: BaseException) -> str:
    return "called sys.exit(2)" if isinstance(error, SystemExit) else f"raised {error!r}"


class RaisesAnywhere(Acking):
    """Raises `error` at `where`, in this class's own methods or in its producer's."""

    where = ""
    error: BaseException

    def __init__(self, upstream: str, name: str = "one", only: list[Any] | None = None) -> None:
        super().__init__(upstream, name, only)
        self.fail_at("constructor")

    @classmethod
    def fail_at(cls, where: str) -> None:
        if cls.where == where:
            raise cls.error

    def serialize(self) -> tuple[str, dict[str, Any]]:
        self.fail_at("serialize")
        return super().serialize()

    def shared_stream_key(self) -> Any:
        self.fail_at("key")
        return (type(self).__name__, self.upstream)

    def describe_stream(self) -> str | None:
        self.fail_at("describe_stream")
        return super().describe_stream()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in super().filter_shared_stream(shared_stream):
            self.fail_at("filter")
            yield event

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        cls.fail_at("create_shared_stream_producer")
        return RaisingProducer(Upstream.known[kwargs["upstream"]], cls.fail_at)

    async def cleanup(self) -> None:
        self.fail_at("cleanup")


class RaisingProducer(Producer):
    def __init__(self, upstream: Upstream, fail_at: Callable[[str], None]) -> None:
        super().__init__(upstream)
        self.fail_at = fail_at

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        self.fail_at("open_stream")
        async for item in super().open_stream():
            yield item

    def get_advance_lane(self, broker_payload: Any) -> Any:
        self.fail_at("get_advance_lane")
        return super().get_advance_lane(broker_payload)

    def get_idempotency_key(self, broker_payload: Any) -> str | None:
        self.fail_at("get_idempotency_key")
        return super().get_idempotency_key(broker_payload)

    async def advance(self, batch: Any) -> None:
        self.fail_at("advance")
        await super().advance(batch)

    async def aclose(self) -> None:
        await super().aclose()
        self.fail_at("aclose")


@pytest.mark.rule(
    "11: a `BaseException`, or code that cancels its own task, harms no other trigger"
)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "where",
    [
        "constructor",
        "key",
        "describe_stream",
        "filter",
        "create_shared_stream_producer",
        "open_stream",
        "get_advance_lane",
        "get_idempotency_key",
        "advance",
    ],
)
async def test_a_base_exception_fails_its_own_trigger_and_harms_no_other_stream(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    other = Upstream(f"{upstream.name} other")
    bad = RaisesAnywhere(upstream.name)
    monkeypatch.setattr(RaisesAnywhere, "error", error, raising=False)
    async with supervised() as service:
        spec = service.spec(lambda: Acking(other.name), "other", {"upstream": other.name})
        service.manager.add([replace(spec, stream_id="other")])
        monkeypatch.setattr(RaisesAnywhere, "where", where)
        (member,) = service.host(bad)
        upstream.put(0)
        await service.settle_down()
        other.put(0)
        await service.settle_down()
        assert member.state is MemberState.FAILING
        assert said_of(error) in str(member.error)
        assert other.outcomes() == {0: (1, 0, 0)}
        monkeypatch.setattr(RaisesAnywhere, "where", "")
        await service.pass_time(2)
        upstream.put(1)
        await service.settle_down()
        assert member.state is MemberState.RUNNING
        assert upstream.outcomes()[1] == (1, 0, 0)
        assert service.manager.streams[member.stream_key].pending.count == 0


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("where", "said"),
    [("cleanup", "cleanup of a trigger failed"), ("aclose", "closing a producer failed")],
)
async def test_a_base_exception_is_logged_while_resources_are_released(
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    said: str,
    error: BaseException,
) -> None:
    monkeypatch.setattr(RaisesAnywhere, "error", error, raising=False)
    monkeypatch.setattr(RaisesAnywhere, "where", where)
    with capture_logs() as logs:
        await fail_and_start_again(upstream)
    assert said in [log["event"] for log in logs]


async def fail_and_start_again(upstream: Upstream) -> None:
    async with supervised() as service:
        (member,) = service.host(RaisesAnywhere(upstream.name))
        await service.settle_down()
        upstream.fail(OSError("no"))
        await service.pass_time(2)
        assert member.state is MemberState.RUNNING
        assert (len(upstream.producers), upstream.closed) == (2, 1)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_the_harness_shows_what_is_no_exception_when_a_trigger_serialises(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(RaisesAnywhere, "error", error, raising=False)
    monkeypatch.setattr(RaisesAnywhere, "where", "serialize")
    async with StreamHarness() as streams:
        one = await streams.add(RaisesAnywhere(upstream.name))
        assert said_of(error) in str(one.error)


async def test_ctrl_c_in_plugin_code_is_no_error_of_the_plugin(upstream: Upstream) -> None:
    def make() -> BaseEventTrigger:
        raise KeyboardInterrupt

    async with supervised() as service:
        with pytest.raises(KeyboardInterrupt):
            service.manager.add([service.spec(make, "one", {})])


async def test_in_a_service_that_hears_signals_an_interrupt_is_the_plugins_own(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RaisesAnywhere, "error", KeyboardInterrupt(), raising=False)
    monkeypatch.setattr(RaisesAnywhere, "where", "open_stream")
    with handling_stop_signals(lambda _: None):
        async with StreamHarness() as streams:
            one = await streams.add(RaisesAnywhere(upstream.name))
            with anyio.fail_after(20):
                while one.error is None:  # noqa: ASYNC110  (the harness tells nobody)
                    await anyio.sleep(0.01)
    assert "KeyboardInterrupt()" in str(one.error)


class ComparesBadly:
    """A key that can be made and hashed, and not be compared with another of its kind."""

    def __eq__(self, other: object) -> bool:
        raise OSError("no")

    def __hash__(self) -> int:
        return 1


class KeyComparesBadly(Acking):
    def shared_stream_key(self) -> Any:
        return ComparesBadly()


async def test_a_key_that_cannot_be_compared_fails_its_own_trigger(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        raise OSError("no")

    upstream.on_filter["one"] = act
    async with supervised() as service:
        (member,) = service.host(KeyComparesBadly(upstream.name))
        upstream.put(0)
        await service.pass_time(2)
        assert member.state is MemberState.FAILING
