"""Checks the runs of partition keys, independently of the scheduler.

The checker observes each commit: the events that entered or left a DAG's queue, and the runs that were created.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from triggerer.testing.simulation.checks.partition_model import Arrival
from triggerer.testing.simulation.worlds.timed.time_checker import TimeChecker

if TYPE_CHECKING:
    from triggerer.testing.simulation.database.model import Dag, DagState, Run, Store


@dataclass(slots=True)
class _Account:
    """The checker's own record of one DAG's events and runs."""

    seen: set[int] = field(default_factory=set)
    queue: set[int] = field(default_factory=set)
    """Events that are not assigned to keys yet."""
    waits: dict[str, set[int]] = field(default_factory=dict)
    """By key, the events that wait for a run."""
    taken: dict[str, set[int]] = field(default_factory=dict)
    """By key, the events that runs took. Each key here has had a run."""
    runs: list[Run] = field(default_factory=list)
    """The runs that the committing transaction creates."""
    is_remapped: bool = False

    def divide(self, event: int, keys: frozenset[str]) -> None:
        self.queue.discard(event)
        for key in keys:
            if event not in self.taken.get(key, ()):
                self.waits.setdefault(key, set()).add(event)

    def return_to_queue(self) -> None:
        self.queue.update(*self.waits.values())
        self.waits.clear()
        self.is_remapped = False


class PartitionChecker(TimeChecker):
    """Reports broken promises (P1 to P4, and the rules of `TimeChecker`), and finds due keys that get no run (L2)."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._accounts = {
            dag_id: _Account() for dag_id, dag in store.dags.items() if dag.keyed is not None
        }
        self.set_back = timedelta()
        """The total time by which the database's clock was set back."""

    def on_run(self, dag: Dag, state: DagState, run: Run) -> None:
        super().on_run(dag, state, run)
        if dag.dag_id in self._accounts:
            self._accounts[dag.dag_id].runs.append(run)

    def on_changed(self, dag: Dag, state: DagState) -> None:
        super().on_changed(dag, state)
        before = self._store.dags[dag.dag_id]
        if dag.dag_id in self._accounts:
            self._accounts[dag.dag_id].is_remapped |= (before.keyed, before.quiet_period_s) != (
                dag.keyed,
                dag.quiet_period_s,
            )

    def on_committed(self) -> None:
        for dag_id, account in self._accounts.items():
            queue = self._store.queues[dag_id]
            if account.is_remapped:
                account.return_to_queue()
            account.queue |= queue.keys() - account.seen
            account.seen |= queue.keys()
            for event in [one for one in account.queue if queue.get(one, -1) is not None]:
                account.divide(event, self._keys_of(dag_id, event))
            for run in account.runs:
                self._check_run(self._store.dags[dag_id], account, run)
            account.runs.clear()
            self._compare(dag_id, account)

    def _check_run(self, dag: Dag, account: _Account, run: Run) -> None:
        key = run.partition_key
        if key is None:
            self._fail("P1", f"{run.run_id} of {dag.dag_id} has no partition key")
            return
        waited = account.waits.pop(key, set())
        has_run = key in account.taken
        if set(run.events) != waited or not waited:
            problem = f"took {sorted(run.events)}, but {sorted(waited)} waited for the key"
            self._fail("P1", f"{run.run_id} of {dag.dag_id} for {key} {problem}")
        account.taken.setdefault(key, set()).update(run.events)
        # If the clock was set back while the key waited, more time has passed than the clock shows. So allow for all
        # the time by which the clock was ever set back.
        at = run.made_at + self.set_back
        arrived = self._arrived(waited)
        assert dag.keyed is not None
        if not dag.keyed.is_due(key, arrived, at, has_run=has_run):
            self._fail("P2", f"{dag.dag_id} is run for {key} at {at}, but has only {arrived}")
        quiet, newest = dag.quiet_period_s, max((one.at for one in arrived), default=at)
        if quiet is not None and not self.is_clock_set_back:
            passed = (run.made_at - newest).total_seconds()
            if passed < quiet:
                self._fail("P4", f"{dag.dag_id} is run for {key} {passed} s after an event")

    def _compare(self, dag_id: str, account: _Account) -> None:
        """Check P3: an event waits for each of its keys, until a run for the key takes it."""
        waits = {key: events for key, events in account.waits.items() if events}
        stored = self._store.partitions[dag_id].waiting()
        if waits != stored:
            self._fail("P3", f"for {dag_id} {stored} waits, but {waits} should")

    def find_due(self) -> dict[tuple[str, int], str]:
        found = super().find_due()
        now = self._store.now()
        for dag_id, account in self._accounts.items():
            dag, state = self._store.dags[dag_id], self._store.states[dag_id]
            active = self._store.active_runs(dag_id)
            if state.is_paused or state.is_stale or active >= dag.max_active_runs:
                continue
            if not self._is_in_season(dag) or (dag.depends_on_past and active):
                continue
            assert dag.keyed is not None
            due = [
                key
                for key, events in account.waits.items()
                if events
                and dag.keyed.is_due(key, self._arrived(events), now, has_run=key in account.taken)
            ]
            queued = {one for one in account.queue if self._asset(one) in dag.keyed.assets}
            if due or queued:
                number = sum(run.dag_id == dag_id for run in self._store.runs.values())
                found[dag_id, number] = f"{dag_id} is due for {due}, and {queued} wait"
        return found

    def record_clock(self, by: timedelta) -> None:
        """Record that the database's clock is about to be set."""
        super().record_clock(by)
        self.set_back += max(-by, timedelta())

    def _keys_of(self, dag_id: str, event: int) -> frozenset[str]:
        keyed = self._store.dags[dag_id].keyed
        assert keyed is not None
        return keyed.keys_of(self._asset(event), self._store.event_keys.get(event))

    def _arrived(self, events: set[int]) -> frozenset[Arrival]:
        times, keys = self._store.event_times, self._store.event_keys
        return frozenset(Arrival(self._asset(one), keys[one] or "", times[one]) for one in events)

    def _asset(self, event: int) -> str:
        asset_id = self._store.events[event]
        return next(name for name, one in self._store.asset_ids.items() if one == asset_id)
