"""Airflow's triggers run with the adapter on the real runtime. The tests need an environment with Airflow."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("airflow", reason="Airflow is not installed in this environment")

from airflow.providers.apache.kafka.triggers.shared_stream import KafkaSharedStreamTrigger
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import (
    AckTimeout,
    AdvanceItem,
    AdvanceOutcome,
    SharedStreamProducer,
    reject_shared_stream_event,
)
from asgiref.sync import sync_to_async

from triggerer import AssetWatcher
from triggerer.errors import DagError
from triggerer.plugins import load_trigger_class
from triggerer.testing import StreamHarness
from watchers.airflow import AirflowEventTrigger


class Producer(SharedStreamProducer):
    advanced: ClassVar[list[AdvanceItem]]
    closed: ClassVar[int]

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        for number in range(4):
            yield number, f"payload {number}"
        await anyio.sleep_forever()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        Producer.advanced += batch

    def get_advance_lane(self, broker_payload: str) -> int:
        return int(broker_payload[-1]) % 2

    async def aclose(self) -> None:
        Producer.closed += 1


class Acknowledged(BaseEventTrigger):
    """An Airflow trigger in ack mode, which fires for odd numbers, rejects 2, and skips 0."""

    timed_out: ClassVar[list[str]]

    def __init__(self, *, prefix: str = "", every: timedelta = timedelta(seconds=1)) -> None:
        super().__init__()
        self.prefix = prefix
        self.every = every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Acknowledged", {"prefix": self.prefix, "every": self.every}

    def shared_stream_key(self) -> str:
        return "numbers"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        raise NotImplementedError
        yield

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Producer:
        assert kwargs["every"] == timedelta(seconds=1)
        return Producer()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        try:
            async for number in shared_stream:
                if number == 2:
                    reject_shared_stream_event()
                elif number % 2:
                    yield TriggerEvent({"number": f"{self.prefix}{number}"})
        except AckTimeout as error:
            Acknowledged.timed_out.append(str(error))
            raise


class Fast(Acknowledged):
    create_shared_stream_producer = BaseEventTrigger.create_shared_stream_producer

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[int]:
        for number in range(4):
            yield number
        await anyio.sleep_forever()


class Alone(Acknowledged):
    def shared_stream_key(self) -> None:  # type: ignore[override]
        return None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent("once")
        await anyio.sleep_forever()


class Keeps(Acknowledged):
    """An Airflow trigger that fires for every number and rejects none."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            yield TriggerEvent({"number": number})


class KeepsHere(AirflowEventTrigger):
    wraps = Keeps


class AcknowledgedHere(AirflowEventTrigger):
    wraps = Acknowledged


class FastHere(AirflowEventTrigger):
    wraps = Fast


class AloneHere(AirflowEventTrigger):
    wraps = Alone


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Producer.advanced, Producer.closed = [], 0
    Acknowledged.timed_out = []


async def test_an_acknowledged_trigger_runs_unchanged_and_its_producer_is_told_in_airflows_types() -> (
    None
):
    async with StreamHarness() as streams:
        one = await streams.add(AcknowledgedHere(Acknowledged(prefix="n")))
        await streams.quiesce()
        assert [event.payload for event in one.events] == [{"number": "n1"}, {"number": "n3"}]
        told = {item.broker_payload: item.outcome for item in Producer.advanced}
        assert told == {
            "payload 0": AdvanceOutcome(acked=1, failed=0),
            "payload 1": AdvanceOutcome(acked=1, failed=0),
            "payload 2": AdvanceOutcome(acked=0, failed=0, rejected=1),
            "payload 3": AdvanceOutcome(acked=1, failed=0),
        }
        assert all(isinstance(item, AdvanceItem) for item in Producer.advanced)
    assert Producer.closed == 1


class Elsewhere(Acknowledged):
    """An Airflow trigger that rejects 2 in another task or thread. `how` is a key of `REJECTING`."""

    def __init__(self, *, how: str, every: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(every=every)
        self.how = how

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Elsewhere", {"how": self.how, "every": self.every}

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[int]
    ) -> AsyncIterator[TriggerEvent]:
        async for number in shared_stream:
            if number == 2:
                await REJECTING[self.how]()
            else:
                yield TriggerEvent({"number": number})


async def _in_task() -> None:
    async def reject() -> None:
        reject_shared_stream_event()

    await asyncio.create_task(reject())


async def _in_task_group() -> None:
    async def reject() -> None:
        await asyncio.sleep(0)
        reject_shared_stream_event()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reject)


REJECTING = {
    "a task": _in_task,
    "a task group": _in_task_group,
    "asyncio.to_thread": lambda: asyncio.to_thread(reject_shared_stream_event),
    "anyio.to_thread": lambda: anyio.to_thread.run_sync(reject_shared_stream_event),
    "sync_to_async": sync_to_async(reject_shared_stream_event),
}


class ElsewhereHere(AirflowEventTrigger):
    wraps = Elsewhere


@pytest.mark.parametrize("how", REJECTING)
async def test_airflows_reject_has_effect_from_child_tasks_and_threads(how: str) -> None:
    """Airflow's docstring allows the call only in the task that runs the filter. Our adapter allows more."""
    async with StreamHarness() as streams:
        one = await streams.add(ElsewhereHere(Elsewhere(how=how)))
        with anyio.fail_after(10):
            while len(Producer.advanced) < 4:
                await streams.quiesce()
                await anyio.sleep(0.01)
        assert one.error is None
        told = {item.broker_payload: item.outcome for item in Producer.advanced}
        assert told["payload 2"] == AdvanceOutcome(acked=0, failed=0, rejected=1)
        assert {told[f"payload {n}"] for n in (0, 1, 3)} == {AdvanceOutcome(acked=1, failed=0)}


async def test_a_sibling_is_not_touched_by_what_another_rejects() -> None:
    """Each subscriber has a context of its own, so Airflow's function rejects only for the calling filter."""
    async with StreamHarness() as streams:
        await streams.add(ElsewhereHere(Elsewhere(how="a task")))
        keeps = await streams.add(KeepsHere(Keeps()))
        await streams.quiesce()
        assert [event.payload for event in keeps.events] == [{"number": n} for n in range(4)]
        told = {item.broker_payload: item.outcome for item in Producer.advanced}
        assert told["payload 2"] == AdvanceOutcome(acked=1, failed=0, rejected=1)


async def test_nothing_is_advanced_before_the_event_is_durable_and_lanes_are_the_producers() -> (
    None
):
    async with StreamHarness(persistence="manual") as streams:
        await streams.add(AcknowledgedHere(Acknowledged()))
        await streams.quiesce()
        assert [item.broker_payload for item in Producer.advanced] == ["payload 0", "payload 2"]
        assert streams.groups["airflow", "numbers"].lanes == {1: 2}


async def test_two_triggers_with_one_key_share_one_producer() -> None:
    async with StreamHarness() as streams:
        one = await streams.add(AcknowledgedHere(Acknowledged(prefix="a")))
        two = await streams.add(AcknowledgedHere(Acknowledged(prefix="b")))
        await streams.quiesce()
        assert streams.groups["airflow", "numbers"].subscribers == 2
        assert [len(view.events) for view in (one, two)] == [2, 2]
    assert Producer.closed == 1


async def test_a_timeout_reaches_the_filter_as_airflows_own() -> None:
    async with StreamHarness(persistence="manual", ack_timeout=10) as streams:
        one = await streams.add(AcknowledgedHere(Acknowledged()))
        await streams.sleep(11)
        assert len(Acknowledged.timed_out) == 1
        assert type(one.error).__name__ == "AckTimeout"


async def test_a_trigger_on_the_fast_path_is_not_acknowledged() -> None:
    async with StreamHarness() as streams:
        one = await streams.add(FastHere(Fast()))
        await streams.quiesce()
        assert [event.payload for event in one.events] == [{"number": "1"}, {"number": "3"}]
        assert streams.groups["airflow", "numbers"].lanes == {}
    assert not Producer.advanced


async def test_a_trigger_without_a_key_runs_alone() -> None:
    async with StreamHarness() as streams:
        one = await streams.add(AloneHere(Alone()))
        await streams.quiesce()
        assert [event.payload for event in one.events] == ["once"]


def test_arguments_that_json_does_not_know_survive() -> None:
    path, kwargs = AcknowledgedHere(Acknowledged(every=timedelta(hours=2))).serialize()
    assert path == f"{__name__}.AcknowledgedHere"
    assert AcknowledgedHere(**kwargs).inner.every == timedelta(hours=2)
    assert AcknowledgedHere(**kwargs).serialize() == (path, kwargs)


def test_a_providers_trigger_is_found_by_the_entry_point_and_makes_the_same_again() -> None:
    trigger = AirflowEventTrigger(KafkaSharedStreamTrigger(topics=["b", "a"]))
    AssetWatcher("orders", trigger)
    path, kwargs = trigger.serialize()
    assert kwargs["classpath"].endswith(".KafkaSharedStreamTrigger")
    cls = load_trigger_class(path, dags_folder=None, allowed_modules=["watchers.airflow"])
    again = cls(**kwargs)
    assert again.serialize() == (path, kwargs)
    assert type(again) is type(trigger)
    assert again.shared_stream_key() == (
        "airflow",
        ("kafka-shared-stream", ("a", "b"), "kafka_default"),
    )


def test_a_message_queue_trigger_runs_as_the_trigger_that_it_stands_for() -> None:
    trigger = AirflowEventTrigger(MessageQueueTrigger(scheme="kafka", topics=["orders"]))
    assert trigger.classpath.endswith(".AwaitMessageTrigger")
    assert trigger.inner.topics == ["orders"]


def test_a_subclass_that_names_its_base_class_is_refused() -> None:
    class Filtered(KafkaSharedStreamTrigger):  # type: ignore[misc]
        pass

    with pytest.raises(DagError, match="wraps = "):
        AirflowEventTrigger(Filtered(topics=["orders"]))


def test_what_is_no_event_trigger_is_refused() -> None:
    with pytest.raises(DagError, match="not a BaseEventTrigger"):
        AirflowEventTrigger(object())


async def test_a_producer_without_keys_is_not_said_to_recognise_what_comes_again() -> None:
    acknowledged = await AcknowledgedHere(Acknowledged()).describe_delivery(ask=False)
    assert (acknowledged.is_acknowledged, acknowledged.key) == (True, None)
    fast = await FastHere(Fast()).describe_delivery(ask=False)
    assert not fast.is_acknowledged
