"""Whether a file of the DAGs folder has just changed."""

import time

import pytest

from triggerer.plugins.folder import has_just_changed


@pytest.mark.parametrize(
    ("ahead_s", "expected"),
    [(-3600, False), (0, True), (3600, False)],
    ids=["an hour ago", "now", "by another clock"],
)
def test_a_file_that_has_just_changed(ahead_s: int, expected: bool) -> None:
    changed_at = time.time_ns() + ahead_s * 1_000_000_000
    stamp = (changed_at, changed_at, 0, 0)
    assert has_just_changed(stamp, within_s=10) is expected
