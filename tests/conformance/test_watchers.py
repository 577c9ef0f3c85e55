"""Runs the conformance suite for triggers on the triggers that come with triggerer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from producers.kafka import KafkaMessage
from tests.unit.watchers.kafka_records import LANE, Record
from triggerer.abc import BaseEventTrigger, BrokerMessage
from triggerer.testing import TriggerConformance
from watchers.directory import (
    DirectoryFileDeleteTrigger,
    FileDeleteTrigger,
    FilePatternTrigger,
    Sighting,
)
from watchers.files.appeared import AppearedFile, PatternSighting
from watchers.files.claiming import FoundFile
from watchers.kafka import KafkaEventTrigger
from watchers.pubsub import PubSubEventTrigger


def message(value: bytes | None) -> KafkaMessage:
    return KafkaMessage(Record(value), LANE, 0)


class TestKafkaEventTrigger(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return KafkaEventTrigger(
            ("weather", "flights"),
            match={"delay": {"gt": 10}},
            extra={"delay": "delay", "kind": {"const": "late"}},
        )

    def siblings(self) -> Sequence[BaseEventTrigger]:
        return [KafkaEventTrigger(["flights", "weather"], start="latest", decode="text")]

    def strangers(self) -> Sequence[BaseEventTrigger]:
        topics = ["flights", "weather"]
        return [
            KafkaEventTrigger(topics, connection="other"),
            KafkaEventTrigger(topics, group_id="mine"),
            KafkaEventTrigger("flights"),
        ]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [
            (message(json.dumps({"delay": 11}).encode()), 1),
            (message(json.dumps({"delay": 10}).encode()), 0),
            (message(b"no JSON"), 0),
            (message(None), 0),
            (message(json.dumps({"delay": 12}).encode()), 1),
        ]


class TestKafkaEventTriggerWithASelector(TestKafkaEventTrigger):
    def new_trigger(self) -> BaseEventTrigger:
        return KafkaEventTrigger(("weather", "flights"), match={"delay": [11, 12]})


def found(name: str) -> FoundFile:
    return FoundFile(Path("/data/in") / name, "1-a", 2, 3)


class TestDirectoryFileDeleteTrigger(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return DirectoryFileDeleteTrigger(Path("/data/in"), "a")

    def siblings(self) -> Sequence[BaseEventTrigger]:
        return [DirectoryFileDeleteTrigger("/data//in/", "b", poke_interval=5)]

    def strangers(self) -> Sequence[BaseEventTrigger]:
        return [
            DirectoryFileDeleteTrigger("/data/out", "a"),
            DirectoryFileDeleteTrigger("/data/in", "a", poke_interval=1),
            FileDeleteTrigger("/data/in/a"),
        ]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [(Sighting(["a", "b"]), 0), (found("b"), 0), (found("a"), 1)]


def appeared(name: str, *patterns: str) -> AppearedFile:
    path = Path("/data/in/processed") / name
    return AppearedFile(name, path, 2, 3, "1-a", frozenset(patterns) if patterns else None)


class TestFilePatternTrigger(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return FilePatternTrigger(Path("/data/in"), "a*.csv")

    def siblings(self) -> Sequence[BaseEventTrigger]:
        return [
            FilePatternTrigger("/data//in/", "b*", poke_interval=5),
            FilePatternTrigger("/data/in", "a*.csv", move_to="processed/"),
        ]

    def strangers(self) -> Sequence[BaseEventTrigger]:
        return [
            FilePatternTrigger("/data/out", "a*.csv"),
            FilePatternTrigger("/data/in", "a*.csv", poke_interval=1),
            FilePatternTrigger("/data/in", "a*.csv", claim="remember"),
            FilePatternTrigger("/data/in", "a*.csv", move_to="done"),
            DirectoryFileDeleteTrigger("/data/in", "a.csv"),
        ]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [
            (PatternSighting(), 0),
            (appeared("a.csv"), 1),
            (appeared("b.csv"), 0),
            (appeared("A.csv"), 0),
            (appeared("a1.csv", "a*.csv", "b*"), 1),
            (appeared("a1.csv", "b*"), 0),
        ]


class TestFileDeleteTrigger(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return FileDeleteTrigger(Path("/data/in/a"))

    def strangers(self) -> Sequence[BaseEventTrigger]:
        return [FileDeleteTrigger("/data/in/b"), DirectoryFileDeleteTrigger("/data/in", "a")]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [(found("a"), 1), (found("b"), 0)]


class TestPubSubEventTrigger(TriggerConformance):
    def new_trigger(self) -> BaseEventTrigger:
        return PubSubEventTrigger(
            "flights", match={"delay": {"gt": 10}, "@attributes.source": "radar"}
        )

    def siblings(self) -> Sequence[BaseEventTrigger]:
        return [PubSubEventTrigger("flights", decode="text", partition_key="@ordering_key")]

    def strangers(self) -> Sequence[BaseEventTrigger]:
        return [PubSubEventTrigger("flights", connection="other"), PubSubEventTrigger("weather")]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        def raw(value: bytes, source: str = "radar") -> BrokerMessage:
            position = {
                "subscription": "projects/p/subscriptions/flights",
                "message_id": "17",
                "ordering_key": "",
            }
            return BrokerMessage(value, None, {"source": source}, position)

        return [
            (raw(b'{"delay": 11}'), 1),
            (raw(b'{"delay": 11}', "pilot"), 0),
            (raw(b'{"delay": 3}'), 0),
            (raw(b"\xff"), 0),
            (raw(b""), 0),
        ]
