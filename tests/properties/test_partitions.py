"""Random partitioned DAGs, events, pauses, caps, clocks and schedulers: the runs equal a model's."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.properties.partition_model import MONTHS, Rule, Spec
from tests.properties.partition_plays import (
    AFTER_FIRST,
    CLOCKS,
    PATIENCE,
    WAITS,
    Drawn,
    Step,
    plays,
)
from tests.properties.partition_runs import run_on_postgres, run_on_sqlite
from tests.properties.three_assets import fresh_copy
from triggerer.scheduler import dividing

_ANY: Any = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
_Q1 = list(MONTHS["2026-Q1"])
_ALL, _LATE = Rule("quarter", 0), Rule("quarter", 1, PATIENCE)
_FIRST = Rule("world", 1, AFTER_FIRST)


def _all_are(rule: Rule, needs: Any = "a", **more: Any) -> Spec:
    return Spec(needs, (rule, rule, rule), rule, **more)


def _emit(name: str, *keys: str, alias: str | None = None) -> Step:
    return ("emit", name, list(keys), alias)


LATE: Drawn = (
    [_all_are(_ALL)],
    [_emit("a", *_Q1), ("schedule", 3), _emit("a", _Q1[0])],
)
DEADLINE: Drawn = (
    [_all_are(_LATE)],
    [_emit("a", _Q1[0]), ("schedule", 1), ("wait", 95)],
)
MAPPED_ANEW: Drawn = (
    [_all_are(Rule("months"), max_active_runs=1)],
    [_emit("a", "2026-Q1"), ("schedule", 1), ("remap", 0), ("end", 0)],
)
_ONE_MORE: list[Step] = [("schedule", 1), ("end", 0)]
CLEANED: Drawn = (
    [_all_are(Rule("months"), max_active_runs=1)],
    [_emit("a", "2026-Q1"), *_ONE_MORE, *_ONE_MORE, ("clean", 0), ("remap", 0), ("schedule", 1)],
)
SET_BACK: Drawn = (
    [_all_are(_FIRST)],
    [_emit("a", "eu"), ("schedule", 1), ("set", -150), ("schedule", 1), ("wait", 10)],
)
RESOLVED: Drawn = (
    [Spec(("&", "a", "x"))],
    [_emit("a", "k"), ("schedule", 1), _emit("b", "k"), _emit("c", "k", alias="x")],
)


_QUIET = Rule("quarter", None, None)
_EARLIER: list[Step] = [_emit("a", _Q1[0])] * 8
LEFT_IN_THE_QUEUE: Drawn = (
    [_all_are(_QUIET, max_active_runs=1)],
    [
        *_EARLIER,
        ("change", 0, _all_are(_QUIET, "b", max_active_runs=1)),
        _emit("b", *_Q1),
        ("schedule", 1),
        ("change", 0, _all_are(_QUIET, max_active_runs=1, quiet=timedelta(minutes=7))),
    ],
)


# Here the scheduler handles four events at a time. After the clock is set back, a deadline counts from the next batch
# of events, and the model knows no batches. So no play here sets the clock back.
@given(plays(WAITS, is_quiet=True))
@example(LATE)
@example(DEADLINE)
@example(MAPPED_ANEW)
@example(CLEANED)
@example(RESOLVED)
@example(LEFT_IN_THE_QUEUE)
@settings(max_examples=20, deadline=None, suppress_health_check=_ANY)
def test_divided_a_few_at_a_time_the_runs_of_partition_keys_are_those_of_the_model(
    template: Path, monkeypatch: pytest.MonkeyPatch, play: Drawn
) -> None:
    monkeypatch.setattr(dividing, "MOST_EVENTS", 4)
    run_on_sqlite(fresh_copy(template), play)


@given(plays(CLOCKS))
@example(SET_BACK)
@settings(max_examples=20, deadline=None, suppress_health_check=_ANY)
def test_the_runs_of_partition_keys_are_those_of_the_model(template: Path, play: Drawn) -> None:
    run_on_sqlite(fresh_copy(template), play)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@given(plays(CLOCKS))
@settings(max_examples=3_000, deadline=None, suppress_health_check=_ANY)
def test_the_runs_of_partition_keys_are_those_of_the_model_over_thousands_of_plays(
    template: Path, play: Drawn
) -> None:
    run_on_sqlite(fresh_copy(template), play)


ON_POSTGRES: st.SearchStrategy[Drawn] = plays(CLOCKS, longest=15)


@pytest.mark.services
@given(ON_POSTGRES)
@example(LATE)
@example(DEADLINE)
@example(CLEANED)
@example(SET_BACK)
@example(RESOLVED)
@settings(max_examples=10, deadline=None, suppress_health_check=_ANY)
def test_on_postgresql_the_runs_of_partition_keys_are_those_of_the_model(
    clocked_postgres_url: str, play: Drawn
) -> None:
    run_on_postgres(clocked_postgres_url, play)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.services
@given(ON_POSTGRES)
@settings(max_examples=2_000, deadline=None, suppress_health_check=_ANY)
def test_on_postgresql_the_runs_of_partition_keys_are_those_of_the_model_over_thousands_of_plays(
    clocked_postgres_url: str, play: Drawn
) -> None:
    run_on_postgres(clocked_postgres_url, play)
