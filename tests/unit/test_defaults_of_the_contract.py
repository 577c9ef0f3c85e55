"""Public classes accept the arguments, and have the defaults, that the contract states."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

from triggerer import (
    DAG,
    Asset,
    AssetWatcher,
    SparkApplication,
    SparkSql,
    TriggerEvent,
    asset,
    task,
)
from triggerer.config import load_settings
from triggerer.testing import StreamHarness
from triggerer.timetables import EventsTimetable, PartitionedAssetTimetable
from watchers.directory import DirectoryFileDeleteTrigger, FileDeleteTrigger
from watchers.http import HttpPollTrigger
from watchers.kafka import KafkaEventTrigger
from watchers.pubsub import PubSubEventTrigger
from watchers.servicebus import ServiceBusEventTrigger
from watchers.sqs import SqsEventTrigger

OF_BROKERS = {"match": None, "decode": "json", "extra": None, "partition_key": None}
KEYWORDS: dict[Any, dict[str, Any]] = {
    DAG: {
        "schedule": None,
        "start_date": None,
        "end_date": None,
        "catchup": False,
        "max_active_runs": 16,
        "description": None,
        "tags": (),
        "params": None,
        "default_args": None,
        "is_paused_upon_creation": False,
        "events_per_run": None,
        "min_run_gap": None,
        "quiet_period": None,
        "depends_on_past": False,
        "priority": 0,
        "on_success_callback": None,
        "on_failure_callback": None,
        "max_parallel_tasks": 1,
        "spark_conf": {},
        "spark_packages": (),
    },
    SparkSql: {"arguments": None, "outlets": (), "templated": True},
    SparkApplication: {
        "arguments": (),
        "conf": {},
        "packages": (),
        "outlets": (),
        "main_class": None,
    },
    Asset: {"uri": None, "name": None, "group": "asset", "extra": None, "watchers": ()},
    AssetWatcher: {"guarantee": None},
    KafkaEventTrigger: {"connection": "kafka", "group_id": None, "start": "earliest"} | OF_BROKERS,
    SqsEventTrigger: {"connection": "sqs"} | OF_BROKERS,
    PubSubEventTrigger: {"connection": "pubsub"} | OF_BROKERS,
    ServiceBusEventTrigger: {"topic": None, "subscription": None, "connection": "servicebus"}
    | OF_BROKERS,
    HttpPollTrigger: {
        "connection": "http",
        "poke_interval": 30.0,
        "items": None,
        "item_key": None,
        "cursor": None,
        "first": "all",
    }
    | OF_BROKERS,
    DirectoryFileDeleteTrigger: {"poke_interval": 5.0},
    FileDeleteTrigger: {"poke_interval": 5.0},
}
"""The keyword-only arguments."""
POSITIONAL: dict[Any, dict[str, Any]] = {
    StreamHarness: {
        "ack_timeout": 300.0,
        "subscriber_queue_size": 1024,
        "overflow_grace": 0.0,
        "catch_up": False,
        "persistence": "auto",
    },
    EventsTimetable: {"event_dates": inspect.Parameter.empty, "restrict_to_events": False},
    TriggerEvent: {"payload": inspect.Parameter.empty},
}
SETTINGS = {
    "shared_stream_ack_timeout": timedelta(seconds=300),
    "shared_stream_subscriber_queue_size": 1024,
    "shared_stream_overflow_grace": timedelta(seconds=5),
    "on_failure": "catch_up",
    "max_deliveries": 10,
    "parked_at_bound": "hold",
}


def parameters(kind: Any, *kinds: Any) -> dict[str, Any]:
    found = inspect.signature(kind).parameters.values()
    return {one.name: one.default for one in found if one.kind in kinds}


@pytest.mark.parametrize("kind", KEYWORDS)
def test_keywords_and_their_defaults_are_those_of_the_contract(kind: Any) -> None:
    assert parameters(kind, inspect.Parameter.KEYWORD_ONLY) == KEYWORDS[kind]


@pytest.mark.parametrize("kind", POSITIONAL)
def test_so_are_arguments_by_position(kind: Any) -> None:
    assert parameters(kind, inspect.Parameter.POSITIONAL_OR_KEYWORD) == POSITIONAL[kind]


def test_so_are_the_settings_of_the_triggerer() -> None:
    settings = load_settings(environ={}).triggerer
    assert {name: getattr(settings, name) for name in SETTINGS} == SETTINGS


def test_decorators_are_called_as_it_is_written_there() -> None:
    a, b = Asset("x-a"), Asset("x-b")

    @asset(schedule=a)
    def made() -> None: ...

    @asset.multi(outlets=[a, b])
    def many() -> None: ...

    assert (made.dag.dag_id, many.dag.dag_id) == ("made", "many")
    options = {"outlets": [a], "inlets": [b], "retries": 1, "retry_delay": 1, "timeout": 1}
    with DAG("called") as dag:

        @task(**options, pool="p", templated=())
        def work(log: Any) -> None: ...

        work()
    assert dag.tasks["work"].outlets == (a,)
    partitioned = PartitionedAssetTimetable(assets=a, partition_mapper_config={})
    assert partitioned == PartitionedAssetTimetable(assets=a)
