"""Bugs in the scheduling by partition keys, planted one at a time. Random plays must find each bug."""

from __future__ import annotations

import pytest

from tests.properties.find_plays import find_play
from tests.properties.mutations import BUGS
from tests.simulation.mutations import MUTATIONS, Mutation

PLAYS = 1_000


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=name, marks=() if bug.is_quick else pytest.mark.full)
        for name, bug in BUGS.items()
    ],
)
def test_plays_find_a_planted_bug(bug: Mutation) -> None:
    with bug.planted():
        assert find_play(PLAYS, start=bug.seed) is not None


@pytest.mark.soak
@pytest.mark.services
def test_plays_on_postgresql_find_schedulers_that_do_not_wait_for_one_another(
    clocked_postgres_url: str,
) -> None:
    # One lock on SQLite keeps the schedulers apart even with the bug.
    with MUTATIONS["keys_are_divided_without_a_lock"].planted():
        assert find_play(PLAYS, url=clocked_postgres_url) is not None
