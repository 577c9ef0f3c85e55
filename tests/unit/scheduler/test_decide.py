from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.conditions import AssetAll, AssetAny, Condition
from triggerer.domain.schedules import OnAssets
from triggerer.scheduler.decide import allot, look
from triggerer.scheduler.looks import DagSnapshot, Look, WaitingAsset

A, B, C = (Asset(f"x-test://{name}", name=name) for name in "abc")
BOUND = 1_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _waiting(
    *counts: tuple[Asset, int], aliases: frozenset[str] = frozenset()
) -> tuple[WaitingAsset, ...]:
    return tuple(
        WaitingAsset(number, asset.name, asset.uri, queued, aliases)
        for number, (asset, queued) in enumerate(counts)
    )


def _dag(
    condition: Condition,
    waiting: tuple[WaitingAsset, ...],
    *,
    dag_id: str = "dag",
    each: int | None = None,
    active: int = 0,
    at_most: int = 16,
) -> DagSnapshot:
    return DagSnapshot(
        dag_id,
        OnAssets(condition),
        NOW,
        max_active_runs=at_most,
        active_runs=active,
        events_per_run=each,
        waiting=waiting,
    )


def decide(dags: Sequence[DagSnapshot], *, limit: int) -> list[Look]:
    return allot([look(dag, at_most=limit, bound=BOUND) for dag in dags], limit=limit)


def _count(dag: DagSnapshot) -> int:
    return len(look(dag, at_most=100, bound=BOUND).runs)


@pytest.mark.rule("a run starts before all of its assets were updated")
def test_a_run_waits_for_all_of_its_assets() -> None:
    assert _count(_dag(AssetAll(A, B), _waiting((A, 9)))) == 0
    assert _count(_dag(AssetAll(A, B), _waiting((A, 9), (B, 1)))) == 1
    assert _count(_dag(AssetAny(A, B), _waiting((B, 1)))) == 1
    assert _count(_dag(AssetAll(A, AssetAny(B, C)), _waiting((A, 1), (C, 1)))) == 1


def test_two_assets_of_one_name_are_told_apart_by_their_uri() -> None:
    other = Asset("x-test://elsewhere", name="a")
    assert _count(_dag(A, _waiting((other, 1)))) == 0


def test_an_alias_is_true_when_an_asset_that_it_resolved_to_waits() -> None:
    condition = AssetAll(AssetAlias("results"), B)
    through = frozenset({"results"})
    waiting = (*_waiting((A, 1), aliases=through), *_waiting((B, 1)))
    assert _count(_dag(condition, waiting)) == 1
    assert _count(_dag(condition, _waiting((A, 1), (B, 1)))) == 0


def test_a_dag_at_its_cap_gets_nothing_and_asks_for_no_second_look() -> None:
    at_cap = _dag(A, _waiting((A, 500)), active=16)
    beyond = _dag(A, _waiting((A, 500)), active=17)
    for dag in (at_cap, beyond):
        (found,) = decide([dag], limit=10)
        assert (found.runs, found.is_cut_short, found.waits_for_end) == ((), False, True)


def test_one_event_for_each_run_takes_one_of_each_asset() -> None:
    assert _count(_dag(AssetAll(A, B), _waiting((A, 5), (B, 3)), each=1)) == 3
    assert _count(_dag(AssetAny(A, B), _waiting((A, 5), (B, 3)), each=1)) == 5
    assert _count(_dag(A, _waiting((A, 5)), each=2)) == 3


@pytest.mark.rule("two events of one instant start one run, although a run for each was asked for")
def test_two_events_of_one_instant_are_two_runs_where_two_were_asked_for() -> None:
    assert _count(_dag(A, _waiting((A, 2)), each=1)) == 2


def test_a_busy_dag_does_not_keep_the_limit_from_the_others() -> None:
    busy = _dag(A, _waiting((A, 900)), dag_id="busy", each=1, at_most=10_000)
    quiet = _dag(B, _waiting((B, 1)), dag_id="quiet")
    found = decide([busy, quiet], limit=10)
    assert [(one.dag_id, len(one.runs), one.is_cut_short) for one in found] == [
        ("busy", 9, True),
        ("quiet", 1, False),
    ]


def test_a_backlog_that_was_not_counted_to_its_end_is_looked_at_again() -> None:
    deep = _dag(A, _waiting((A, BOUND)), each=500, at_most=50)
    (found,) = decide([deep], limit=100)
    assert len(found.runs) == 2
    assert found.is_cut_short


_CONDITIONS = st.recursive(
    st.sampled_from([A, B, C]),
    lambda inner: st.builds(
        lambda kind, parts: kind(*parts),
        st.sampled_from([AssetAll, AssetAny]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.tuples(
            _CONDITIONS,
            st.dictionaries(st.sampled_from("abc"), st.integers(1, 40)),
            st.none() | st.integers(1, 5),
            st.integers(0, 5),
            st.integers(1, 8),
        ),
        max_size=5,
    ),
    st.integers(1, 7),
)
def test_every_due_dag_gets_its_runs_in_the_end_and_none_exceeds_its_cap(
    dags: list[tuple[Condition, dict[str, int], int | None, int, int]], limit: int
) -> None:
    """Do what the scheduler's loop does: decide, remove the runs' events, and look again at DAGs with more due runs."""
    by_name = {"a": A, "b": B, "c": C}
    queues = {f"dag{n}": dict(dag[1]) for n, dag in enumerate(dags)}
    active = {f"dag{n}": dag[3] for n, dag in enumerate(dags)}
    received = {dag_id: sum(queue.values()) for dag_id, queue in queues.items()}
    taken = dict.fromkeys(queues, 0)

    def snapshot(dag_id: str) -> DagSnapshot:
        condition, _, each, _, at_most = dags[int(dag_id[3:])]
        waiting = _waiting(*((by_name[name], n) for name, n in queues[dag_id].items()))
        return _dag(
            condition, waiting, dag_id=dag_id, each=each, active=active[dag_id], at_most=at_most
        )

    dirty = list(queues)
    for _ in range(2_000):
        if not dirty:
            break
        found = decide([snapshot(one) for one in dirty], limit=limit)
        assert sum(len(one.runs) for one in found) <= limit
        for runs in (run for one in found for run in one.runs):
            queue = queues[runs.dag_id]
            assert queue, "a run without events"
            for name in list(queue):
                step = min(queue[name], runs.events_per_run or queue[name])
                taken[runs.dag_id] += step
                queue[name] -= step
                if not queue[name]:
                    del queue[name]
            active[runs.dag_id] += 1
        unserved = [one.dag_id for one in found if one.is_cut_short and not one.runs]
        dirty = [*unserved, *(o.dag_id for o in found if o.is_cut_short and o.runs)]
    assert not dirty, "it looks again for ever"
    for number, (_, _, _, began, at_most) in enumerate(dags):
        dag_id = f"dag{number}"
        assert active[dag_id] <= max(at_most, began)
        assert taken[dag_id] + sum(queues[dag_id].values()) == received[dag_id]
        # No further run is due, unless the cap delays it.
        assert _count(snapshot(dag_id)) == 0
