"""A double of the Pub/Sub service, whose faults the test chooses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.services.brokers.pubsub_double import PubSubDouble, open_pubsub_double


@pytest.fixture
def double() -> Iterator[PubSubDouble]:
    with open_pubsub_double() as server:
        yield server


@pytest.fixture
def name() -> str:
    """The name of a topic and of its subscription."""
    return f"t-{uuid.uuid4().hex[:10]}"
