"""Draws plays of partitioned DAGs: the DAGs, and the steps that follow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st

from tests.properties.partition_model import MONTHS, REGIONS, WHOLES, Rule, Spec
from tests.properties.scheduling_model import Needs
from tests.properties.three_assets import ALIASES, THREE
from tests.store.partitions import asset, partitioned
from triggerer.domain.assets import AssetAlias
from triggerer.domain.conditions import AssetAll, AssetAny, Condition
from triggerer.partitions import (
    AllowedKeyMapper,
    DayWindow,
    FanOutMapper,
    FixedKeyMapper,
    IdentityMapper,
    MinimumCount,
    PartitionMapper,
    QuarterWindow,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
    StartOfQuarterMapper,
    WaitForAll,
    WaitPolicy,
    WaitUntil,
    Window,
)

PATIENCE = timedelta(minutes=30)
AFTER_FIRST = timedelta(minutes=10)
Step = tuple[Any, ...]
Drawn = tuple[list[Spec], list[Step]]


def _rolled_up(to: str, patience: timedelta) -> tuple[Rule, ...]:
    counts = (Rule(to, least) for least in (0, 2, -1))
    return (Rule(to), *counts, Rule(to, 1, patience), Rule(to, 2, patience))


@dataclass(frozen=True)
class Family:
    """Rules and event keys that lead to common run keys."""

    rules: tuple[Rule, ...]
    keys: tuple[str | None, ...]
    wholes: tuple[tuple[str, ...], ...] = ()
    """All parts of each run key, which sometimes come at once."""


_OTHERS = ("else", None)
_HOURS = ("2026-03-31T22", "2026-03-31T23", "2026-04-01T00")
_QUARTERS = Family(
    (*_rolled_up("quarter", PATIENCE), Rule()),
    (*(month for months in MONTHS.values() for month in months), "2026-Q1", *_OTHERS),
    tuple(MONTHS.values()),
)
_DAYS = Family(
    (*_rolled_up("day", PATIENCE), Rule()),
    (*_HOURS, "2026-03-31", *_OTHERS),
    tuple(WHOLES["day"].values()),
)
_WORLD = Family(
    (*_rolled_up("world", AFTER_FIRST), Rule("allowed"), Rule()), (*REGIONS, "world", *_OTHERS)
)
_MONTHS = Family((Rule("months"), Rule()), (*MONTHS, "2026-01", "2026-05", *_OTHERS))
_EACH = (_QUARTERS, _DAYS, _WORLD, _MONTHS)
FAMILIES = (
    *_EACH,
    Family(
        tuple(dict.fromkeys(rule for one in _EACH for rule in one.rules)),
        tuple(dict.fromkeys(key for one in _EACH for key in one.keys)),
    ),
)
EXPRESSIONS: st.SearchStrategy[Needs] = st.recursive(
    st.sampled_from([*THREE, *ALIASES]),
    lambda some: st.tuples(st.sampled_from("&|"), some, some),
    max_leaves=4,
)
WAITS = st.tuples(st.just("wait"), st.sampled_from([1, 5, 10, 20, 35, 95]))
# A clock that was wrong, by hours or days, in either direction.
CLOCKS = WAITS | st.tuples(st.just("set"), st.sampled_from([-3_000, -150, -150, -20, 4_000]))


# Some steps map all waiting events again, which resets all keys. So these steps must be rare. With `one_of`, Hypothesis
# would draw them as often as the others.
_OFTEN = (
    *["emit"] * 6, *["schedule"] * 6, *["to a DAG"] * 2, *["clock"] * 4, "delete", "change", "clean",
)  # fmt: skip


@st.composite
def plays(
    draw: st.DrawFn, clocks: st.SearchStrategy[Step], *, longest: int = 25, is_quiet: bool = False
) -> Drawn:
    """Draw some DAGs and steps.

    Args:
        is_quiet: Whether DAGs may have a quiet period.
    """
    family = draw(st.sampled_from(FAMILIES))
    rules = st.sampled_from(family.rules)
    caps = st.sampled_from([1, 2, 16, 16])
    specs = st.builds(
        Spec,
        needs=EXPRESSIONS,
        rules=st.tuples(rules, rules, rules),
        default=rules,
        max_active_runs=caps,
        gap=st.sampled_from([None, None, None, timedelta(minutes=20)]),
        quiet=st.sampled_from([None, timedelta(minutes=7)]) if is_quiet else st.none(),
        depends_on_past=st.sampled_from([False, False, False, True]),
    )
    keys = st.lists(st.sampled_from(family.keys), min_size=1, max_size=6)
    if family.wholes:
        keys = keys | st.sampled_from(family.wholes).map(list)
    alias = st.sampled_from([None, None, *ALIASES])
    which = st.integers(0, 1)
    each = {
        "emit": st.tuples(st.just("emit"), st.sampled_from(THREE), keys, alias),
        "schedule": st.tuples(st.just("schedule"), st.integers(1, 4)),
        "to a DAG": st.tuples(
            st.sampled_from(["pause", "unpause", "end", "end", "fail", "remap"]), which
        ),
        "delete": st.tuples(st.just("delete"), which, st.sampled_from(THREE)),
        "change": st.tuples(st.just("change"), which, specs),
        # The least age of cleaned rows, in minutes.
        "clean": st.tuples(st.just("clean"), st.sampled_from([0, 0, 15, 150])),
        "clock": clocks,
    }
    steps = st.sampled_from(_OFTEN).flatmap(each.__getitem__)
    dags = draw(st.lists(specs, min_size=1, max_size=2))
    return dags, draw(st.lists(steps, min_size=longest // 2, max_size=longest))


_UPSTREAM: dict[str, PartitionMapper] = {
    "quarter": StartOfQuarterMapper(input_format="%Y-%m"),
    "day": StartOfDayMapper(input_format="%Y-%m-%dT%H"),
    "world": FixedKeyMapper("world"),
}
_WINDOWS: dict[str, Window] = {
    "quarter": QuarterWindow(),
    "day": DayWindow(),
    "world": SegmentWindow(REGIONS),
}


def mapper_of(rule: Rule) -> PartitionMapper:
    """The product's mapper for a rule."""
    match rule.to:
        case "same":
            return IdentityMapper()
        case "allowed":
            return AllowedKeyMapper(REGIONS[:2])
        case "months":
            quarters = StartOfQuarterMapper(input_format="%Y-Q{quarter}")
            return FanOutMapper(upstream_mapper=quarters, window=QuarterWindow())
    upstream = _UPSTREAM[rule.to]
    if rule.least is None:
        return upstream
    policy: WaitPolicy = WaitForAll() if rule.least == 0 else MinimumCount(rule.least)
    if rule.patience is not None:
        policy = WaitUntil(rule.patience, minimum=rule.least)
    return RollupMapper(upstream_mapper=upstream, window=_WINDOWS[rule.to], wait_policy=policy)


def condition_of(needs: Needs) -> Condition:
    """The product's condition for an expression."""
    if isinstance(needs, str):
        return AssetAlias(needs) if needs in ALIASES else asset(needs)
    kind, one, other = needs
    return (AssetAll if kind == "&" else AssetAny)(condition_of(one), condition_of(other))


def schedule_of(spec: Spec) -> dict[str, Any]:
    """The stored form of a DAG's schedule."""
    return partitioned(
        condition_of(spec.needs),
        partition_mapper_config={
            asset(name): mapper_of(spec.rule_of(name)) for name in spec.assets
        },
        default_partition_mapper=mapper_of(spec.default),
    )
