"""A separate world of schedulers, with DAGs that are scheduled by partition keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

from triggerer.scheduler import dividing
from triggerer.testing.simulation.checks.partition_model import KEYS
from triggerer.testing.simulation.database.model import Dag
from triggerer.testing.simulation.kernel.scenario import Scenario
from triggerer.testing.simulation.worlds.timed.partitioned_dags import ASSETS, draw_change, draw_dag
from triggerer.testing.simulation.worlds.timed.timed_world import TimedWorld


class PartitionedWorld(TimedWorld):
    """Like the world of timetables, but with partitioned DAGs, and events with partition keys."""

    name: ClassVar[str] = "partitions"
    action_interval_s: ClassVar[float] = 90.0
    assets = ASSETS

    def __init__(
        self,
        scenario: Scenario,
        *,
        first_step: int = 0,
        trace: Callable[[float, int, str], None] | None = None,
    ) -> None:
        super().__init__(scenario, first_step=first_step, trace=trace)
        self._most_divided = self.random.choice((1, 3, dividing.MOST_EVENTS))
        keys = self.random.sample(KEYS, self.random.randint(4, len(KEYS)))
        self._keys: list[str | None] = keys

    def run(self) -> None:
        """Run the world to its end.

        Raises:
            Violation: A promise was broken.
        """
        # The product divides at most `MOST_EVENTS` events among partition keys at once. No seed has that many events,
        # so reduce the constant.
        module = cast("Any", dividing)
        before, module.MOST_EVENTS = module.MOST_EVENTS, self._most_divided
        try:
            super().run()
        finally:
            module.MOST_EVENTS = before

    def draw_events(self) -> list[tuple[int, str | None]]:
        """Draw some events, as pairs of an asset's id and a partition key."""
        assets = sorted(self.store.asset_ids.values())
        number = self.random.randint(1, 5)
        return [(self.random.choice(assets), self.random.choice(self._keys)) for _ in range(number)]

    def draw_change(self, dag: Dag) -> Dag:
        return draw_change(self.random, dag)

    def draw_all_dags(self) -> list[Dag]:
        rng = self.random
        return [draw_dag(rng, f"timed {number}") for number in range(rng.randint(1, 4))]
