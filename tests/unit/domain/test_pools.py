"""Which queued runs may begin, where pools have few slots."""

from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.pools import QueuedRun, choose, pools_in


def runs(*pools: str) -> list[QueuedRun]:
    return [QueuedRun(number, frozenset(some)) for number, some in enumerate(pools)]


def test_a_pool_gives_each_slot_to_one_run_and_others_go_on() -> None:
    queued = runs("a", "a", "a", "", "b")
    assert choose(queued, [], {"a": 2, "b": 1}, limit=9) == [0, 1, 3, 4]
    assert choose(queued, [frozenset("a")], {"a": 2, "b": 1}, limit=9) == [0, 3, 4]
    assert choose(queued, [], {"a": 2, "b": 1}, limit=3) == [0, 1, 3]


def test_a_pool_that_nobody_configured_has_one_slot() -> None:
    assert choose(runs("a", "a"), [], {}, limit=9) == [0]


def test_none_overtakes_another_that_waits_for_one_of_its_pools() -> None:
    queued = runs("ab", "a", "c", "b")
    assert choose(queued, [frozenset("b")], {"a": 1, "b": 1, "c": 1}, limit=9) == [2]


def test_a_row_names_its_pools() -> None:
    assert pools_in(None) == frozenset()
    assert pools_in("a,b") == {"a", "b"}


SETS = st.frozensets(st.sampled_from("abc"))


@given(
    st.lists(SETS, max_size=12),
    st.lists(SETS, max_size=4),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)),
    st.integers(0, 8),
)
def test_no_pool_has_more_runs_than_slots_and_everybodys_turn_comes(
    queued: list[frozenset[str]],
    running: list[frozenset[str]],
    slots: dict[str, int],
    limit: int,
) -> None:
    """Play executors: begin what is chosen, end the oldest, until nothing is left."""
    waiting = [QueuedRun(number, pools) for number, pools in enumerate(queued)]
    first = choose(waiting, running, slots, limit=limit)
    assert len(first) <= limit
    held = [frozenset(pools) for pools in running]
    for _ in range(2 * len(queued) + len(running) + 1):
        chosen = choose(waiting, held, slots, limit=3)
        for run in (one for one in waiting if one.run_pk in chosen):
            held.append(run.pools)
            for pool in run.pools:
                assert sum(pool in one for one in held) <= slots.get(pool, 1)
        waiting = [one for one in waiting if one.run_pk not in chosen]
        held = held[1:]
    assert waiting == []
