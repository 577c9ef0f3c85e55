"""The run of a partition key starts after the DAG's quiet period. A clock that is set back delays the run little."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from triggerer.domain.assets import Asset
from triggerer.domain.partitions import IdentityMapper
from triggerer.domain.partitions.dividing import Part, Partitioner
from triggerer.scheduler.dividing import key_record
from triggerer.store.partitions.keys import KnownKey

NOW = datetime(2026, 3, 2, 10, tzinfo=UTC)
QUIET = timedelta(seconds=30)
A = Asset("x-test://a", name="a")
EARLIER = NOW - timedelta(seconds=40)


@pytest.mark.parametrize(
    ("newest", "before", "due"),
    [
        (NOW - timedelta(seconds=10), EARLIER, NOW + timedelta(seconds=20)),
        # The newest event was committed after the look had begun.
        (NOW + timedelta(milliseconds=5), EARLIER, NOW + QUIET + timedelta(milliseconds=5)),
        # The clock was set back after the newest event.
        (NOW + timedelta(hours=2), EARLIER, EARLIER + QUIET),
        # The clock was set back before the newest event came.
        (NOW - timedelta(seconds=10), NOW + timedelta(hours=2), NOW + timedelta(seconds=20)),
        (NOW + timedelta(hours=2), NOW + timedelta(hours=3), NOW),
    ],
)
def test_a_quiet_period_counts_from_the_newest_event_unless_the_clock_was_set_back(
    newest: datetime, before: datetime, due: datetime
) -> None:
    partitioner = Partitioner(A, {}, IdentityMapper())
    record = key_record(
        partitioner,
        "eu",
        [Part(1, "a", "x-test://a", "", EARLIER)],
        newest,
        KnownKey(0, before + QUIET, before),
        now=NOW,
        quiet_period=QUIET,
    )
    assert record.due_at == due
