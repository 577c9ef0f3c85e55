"""Gives plugin authors a broker in memory, the conformance suites, and the runtime without a database.

This package does not need pytest. The pytest fixtures are in `triggerer.testing.pytest_plugin`.
"""

from triggerer.testing.clock import VirtualClock
from triggerer.testing.conformance.features import Feature
from triggerer.testing.conformance.producers import ProducerConformance
from triggerer.testing.conformance.timetables import TimetableConformance, frozen_clock
from triggerer.testing.conformance.triggers import TriggerConformance
from triggerer.testing.harness import GroupView, HostedView, StreamHarness
from triggerer.testing.memory_broker import (
    InMemoryBroker,
    InMemoryMessage,
    InMemoryProducer,
    InMemoryQueueProducer,
)
from triggerer.testing.memory_state import InMemoryState

__all__ = [
    "Feature",
    "GroupView",
    "HostedView",
    "InMemoryBroker",
    "InMemoryMessage",
    "InMemoryProducer",
    "InMemoryQueueProducer",
    "InMemoryState",
    "ProducerConformance",
    "StreamHarness",
    "TimetableConformance",
    "TriggerConformance",
    "VirtualClock",
    "frozen_clock",
]
