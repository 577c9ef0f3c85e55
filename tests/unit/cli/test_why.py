"""The words of `why`, and of `why-not` about partition keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from triggerer.cli.terminal.output import text
from triggerer.cli.why import _readable_key, readable_message
from triggerer.domain.partitions.dividing import Lack
from triggerer.scheduler.explaining_partitions import WaitingPartition
from triggerer.store.listing.views import AssetEventView

AT = datetime.fromisoformat("2026-03-10T06:00:00+00:00")
LACK = Lack("hours", ("2026-03-09T23",))


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (WaitingPartition("eu", None, 0, (LACK,)), "eu waits for hours 2026-03-09T23"),
        (
            WaitingPartition("eu", AT, 0, (LACK,)),
            f"eu waits for hours 2026-03-09T23, and runs with what is there from {text(AT)}",
        ),
        # In its quiet period.
        (WaitingPartition("eu", AT, 0, ()), f"eu can run from {text(AT)} on"),
        (WaitingPartition("eu", AT, 1, ()), f"eu can run from {text(AT)} on (it has run 1 time)"),
        (WaitingPartition("eu", None, 2, ()), "eu waits for another event (it has run 2 times)"),
    ],
)
def test_a_key_is_told_with_what_it_waits_for_and_from_when_it_may_run(
    key: WaitingPartition, told: str
) -> None:
    assert _readable_key(key) == told


KEY = "orders@YMOVRwIuQmWU01awnUsYqw/0/17"


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"topic": "orders", "partition": 0, "offset": 17, "value": 1}, "orders[0] offset 17"),
        # An `extra` of the user's own.
        ({"id": 1}, KEY),
        ({"topic": "orders", "partition": "0", "offset": 17}, KEY),
    ],
)
def test_a_message_of_kafka_is_told_by_its_topics_name(extra: dict[str, Any], told: str) -> None:
    event = AssetEventView(1, "o", "o", extra, AT, "w", None, None, None, KEY, None)
    assert readable_message(event) == told
