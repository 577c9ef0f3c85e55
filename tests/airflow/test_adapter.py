"""Airflow's triggers through the adapter, on the real runtime; runs only where Airflow is installed."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import anyio
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
    """An Airflow trigger in ack mode: fires for odd numbers, rejects 2, skips 0."""

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
