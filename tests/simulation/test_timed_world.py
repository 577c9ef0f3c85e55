"""The seeds of the world of timetables reach the situations that its checks are about."""

from __future__ import annotations

from triggerer.testing.simulation.database.model import Store
from triggerer.testing.simulation.kernel.drawing import draw_scenario
from triggerer.testing.simulation.kernel.sandbox import sandbox
from triggerer.testing.simulation.kernel.scenario import has_timetables
from triggerer.testing.simulation.worlds.timed.timed_world import TimedWorld


def _play(seed: int) -> Store:
    world = TimedWorld(draw_scenario(seed))
    with sandbox():
        world.run()
    return world.store


def test_keys_that_timetables_give_count_for_the_dag_that_follows() -> None:
    whole = parts = 0
    for seed in filter(has_timetables, range(200)):
        runs = _play(seed).runs.values()
        given = {run.partition_key for run in runs if run.interval is not None} - {None}
        followers = [run for run in runs if run.dag_id == "follower"]
        whole += sum(run.partition_key in given for run in followers)
        parts += sum(run.partition_key not in given for run in followers)
        if whole and parts:
            return
    raise AssertionError((whole, parts))
