"""The simulated world: everything that survives when a simulated process ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Any

from triggerer.abc import BaseEventTrigger
from triggerer.domain.assets import Asset
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.parked import ParkedState
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.testing.simulation.brokers.broker import Broker
from triggerer.testing.simulation.brokers.stream import Declared, Stream, WatcherTemplate
from triggerer.testing.simulation.checks.checker import Checker
from triggerer.testing.simulation.database.model import Dag, Store
from triggerer.testing.simulation.example import ExampleTrigger, SparingTrigger
from triggerer.testing.simulation.faults.catching_up import (
    MOST_DELIVERIES,
    Health,
    draw_catching_up,
)
from triggerer.testing.simulation.faults.deployments import Deployments
from triggerer.testing.simulation.faults.poison import Poison
from triggerer.testing.simulation.faults.recreations import Recreations
from triggerer.testing.simulation.faults.relapses import Relapses
from triggerer.testing.simulation.faults.replaying import Replaying
from triggerer.testing.simulation.faults.standstills import Standstills
from triggerer.testing.simulation.faults.tidying import Operator
from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
from triggerer.testing.simulation.kernel.scenario import (
    AMPLE,
    Scenario,
    has_deployments,
    has_instant_answers,
    has_recreations,
    has_relapses,
    has_replays,
    has_shared_triggers,
    has_slow_modules,
    has_standstills,
)
from triggerer.testing.simulation.worlds.files import Files
from triggerer.testing.simulation.worlds.sharing import Sharing

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Message, Owner


class World:
    """All that a seed has drawn, and all that survives a crash. A `Supervisor` runs the world."""

    def __init__(
        self, scenario: Scenario, *, trace: Callable[[float, int, str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.faults = FaultInjector(
            scenario.seed,
            latency=scenario.latency,
            slow_rate=scenario.slow_rate,
            is_instant=has_instant_answers(scenario),
        )
        self.jitter = Random(scenario.seed)
        """The random generator for the jitter of the product's back-offs."""
        self._loads = Random(f"loads {scenario.seed}") if has_slow_modules(scenario.seed) else None
        """Draws how long trigger classes take to load; None if they load at once."""
        self.checker = Checker()
        self.checker.is_owner = self._is_owner
        if trace is not None:
            self.checker.trace = self.trace
        self.store = Store(scenario, self.faults, self.checker)
        self._example = SparingTrigger if has_instant_answers(scenario) else ExampleTrigger
        self.catching_up_draws = draw_catching_up(scenario)
        self.health = Health(scenario, self.catching_up_draws)
        self.health.now = lambda: self.time()  # noqa: PLW0108  (it is replaced for each process)
        self.checker.catching_up.is_on = self.catching_up_draws.is_on
        self.checker.catching_up.rows = self.store.positions
        self.checker.catching_up.parked = self.store.parked
        self.checker.catching_up.is_log = scenario.is_log
        self.checker.catching_up.sets_aside = self.catching_up_draws.sets_aside and scenario.is_log
        self.checker.catching_up.may_stay_at = self._may_stay_at
        self.checker.parked.bounds = self.catching_up_draws
        self.checker.parked.rows = self.store.parked
        self.checker.parked.has_one_stream = scenario.streams == 1
        self.checker.parked.has_room = self.catching_up_draws.has_room
        self.checker.parked.max_deliveries = self.catching_up_draws.max_deliveries
        self.checker.rest.rows = self.checker.replays.rows = self.store.positions
        self.checker.rest.replays = self.checker.replays.requests = self.store.replays
        self.checker.rest.states = self.store.watcher_states
        self.checker.probes.parked = self.store.parked
        self.checker.probes.max_deliveries = self.catching_up_draws.max_deliveries
        self.checker.catching_up.is_ordered = not self.catching_up_draws.is_unordered
        self.checker.catching_up.lanes = lambda topic: self.stream(topic).broker.lanes
        self.checker.catching_up.is_asked = self._is_asked
        self.checker.replays.lanes = self.checker.catching_up.lanes
        self.checker.catching_up.is_read_again = self.checker.replays.is_read_again
        if self.health.poison is not None:
            self._expose_to(self.health.poison)
        self.checker.is_taken_over = self.store.is_taken_over
        self.streams: list[Stream] = []
        self._classes: dict[int, type[BaseEventTrigger]] = {}
        self._served_by: dict[int, int] = {}
        """By watcher, the trigger of its last declaration."""
        self.moves = Counter[int]()
        """By trigger, how often a watcher has moved to it or away from it."""
        self.steps = 0
        self.processes = 0
        self.operator = Operator(self)
        self.replaying = Replaying(self) if has_replays(scenario) else None
        self.recreations = Recreations(self) if has_recreations(scenario) else None
        self.deployments = Deployments(self) if has_deployments(scenario.seed) else None
        """Deploys watchers while messages come; None if this seed has no deployments."""
        self.relapses = (
            Relapses(self) if has_relapses(scenario) and self.catching_up_draws.is_on else None
        )
        """Deploys watchers that have just caught up; None if this seed has no relapses."""
        self.sharing = Sharing(self) if has_shared_triggers(scenario) else None
        """Decides which watchers share a trigger; None if each watcher has its own trigger."""
        if self.relapses is not None:
            self.store.deleting_position = self.relapses.on_deleting
        self._standstills = Standstills(scenario) if has_standstills(scenario) else None
        self.pass_time: Callable[[float], None] = lambda _: None
        """Lets this many seconds pass at once. It is replaced for each process."""
        self.capacity = scenario.capacity
        self._trace = trace
        self._numbers = 0
        self.time: Callable[[], float] = lambda: 0.0
        """The virtual time, in seconds."""
        self.files: Files | None = None
        """The DAGs folder, or None if the world declares the watchers itself."""
        self._draw_dags()
        self._draw_streams()
        if scenario.has_files:
            self.files = Files(scenario.seed, self.store)
            self._put_into_files(self.files)

    # Before the world starts

    def _expose_to(self, poison: Poison) -> None:
        poison.lanes = self.checker.catching_up.lanes
        poison.derives = lambda watcher, message: self._example.derives(
            self.kind_of(watcher), message.event
        )
        poison.is_incurable = self._is_incurable
        poison.now = self.health.now
        poison.count_failed = self.checker.parked.count_failed
        poison.was_tried = self.checker.parked.was_tried

    def _may_stay_at(self, watcher: int, message: Message) -> bool:
        poison = self.health.poison
        if poison is None:
            return self.checker.catching_up.is_hopeless(watcher, message.key)
        return poison.may_stay_at(watcher, message)

    def _is_incurable(self, watcher: int) -> bool:
        """Whether the watcher's poison messages can be parked: it can fall behind alone, and probes are made."""
        siblings = next(stream.watchers for stream in self.streams if watcher in stream.watchers)
        falls_behind = self.checker.catching_up.falls_behind and len(siblings) > 1
        return falls_behind and self.catching_up_draws.max_deliveries <= MOST_DELIVERIES

    def _draw_dags(self) -> None:
        rng = self.faults.random
        assets = [Asset(name=name) for name in "xyz"]
        self.store.asset_ids = {asset.name: number for number, asset in enumerate(assets, 1)}
        x, y, z = assets
        conditions = (x, y, x & y, x | y, x & (y | z))
        for number in range(rng.randint(1, 3)):
            self.add_dag(
                Dag(
                    f"dag {number}",
                    rng.choice(conditions),
                    max_active_runs=rng.choice((1, 1, 2, 16)),
                    events_per_run=rng.choice((None, 1, 2)),
                )
            )

    def add_dag(self, dag: Dag) -> None:
        self.store.dags[dag.dag_id] = dag
        self.store.queues[dag.dag_id] = {}

    def replace_dags(self, dags: Iterable[Dag], asset_ids: dict[str, int]) -> None:
        """Use these DAGs instead of the drawn ones."""
        self.store.dags.clear()
        self.store.queues.clear()
        self.store.asset_ids = asset_ids
        for dag in dags:
            self.add_dag(dag)

    def _draw_streams(self) -> None:
        for number in range(self.scenario.streams):
            key = f"stream {number}"
            broker = Broker(key, self.scenario, self.faults, self.checker)
            broker.now = self.store.now
            template = WatcherTemplate(self._example, {})
            stream = Stream(key, broker, (template,), lambda number, *_: f"message {number}")
            self.add_stream(stream)
            # If the capacity is limited, streams have different sizes.
            is_ample = self.capacity == AMPLE
            count = self.scenario.watchers if is_ample else self.faults.random.randint(1, 4)
            for _ in range(count):
                self.new_watcher(stream)

    def _put_into_files(self, files: Files) -> None:
        """Move the drawn watchers into files. At least one file of each stream is quick to import."""
        for stream in self.streams:
            for number, watcher in enumerate(list(stream.watchers)):
                declared = self._declared(stream, watcher)
                files.add(stream, declared, is_slow=number > 0 and files.random.random() < 0.7)
                self.withdraw(stream, watcher)

    def stream(self, key: str) -> Stream:
        """Return the stream with this key."""
        return next(stream for stream in self.streams if stream.key == key)

    def add_stream(self, stream: Stream) -> None:
        self.streams.append(stream)
        self.store.owners.leases[stream.key] = (None, 0)

    def forget_streams(self) -> None:
        """Remove the streams that the seed has drawn, with their files, poison messages and shared triggers."""
        self.files = self.health.poison = self.sharing = None
        self.checker.catching_up.sets_aside = False
        self.streams.clear()
        self.store.owners.leases.clear()
        self.store.triggers.clear()

    def new_watcher(self, stream: Stream, template: WatcherTemplate | None = None) -> None:
        """Declare a watcher from `template`, or from any template of the stream."""
        template = template or self.faults.random.choice(stream.templates)
        asset = template.asset_id
        if asset is None:
            asset = self.faults.random.choice(sorted(self.store.asset_ids.values()))
        number = self.next_number()
        if template.name is not None:
            self.checker.filter_errors.names[number] = template.name
        declared = Declared(WatcherRef(number, asset), template.cls, template.kwargs)
        if self.files is None:
            self.declare(stream, declared)
        else:
            self.files.add(stream, declared, is_slow=self.files.random.random() < 0.5)

    def replace_watcher(self, stream: Stream, watcher: int) -> None:
        """Give a watcher another trigger, as after a change of its arguments."""
        declared = self._declared(stream, watcher)
        self._leave_trigger(stream, watcher)
        self.declare(stream, declared)

    def _declared(self, stream: Stream, watcher: int) -> Declared:
        row = stream.watchers[watcher]
        ref = next(one for one in row.watchers if one.watcher_id == watcher)
        return Declared(ref, self.class_of(row), row.kwargs)

    def delete_watcher(self, stream: Stream, watcher: int) -> None:
        """Delete a watcher on purpose. In a world with files, delete its file, which takes effect after a delay."""
        self.checker.deleted.add(watcher)
        if self.files is None:
            self.withdraw(stream, watcher)
        else:
            self.files.delete(watcher)

    def withdraw(self, stream: Stream, watcher: int) -> None:
        """Remove a watcher from the store, with its positions and replays. Its stored messages are parked."""
        self._leave_trigger(stream, watcher)
        for at in [at for at in self.store.positions if at[0] == watcher]:
            del self.store.positions[at]
        for request in [one for one in self.store.replays.values() if one.watcher_id == watcher]:
            del self.store.replays[request.id]
        for key, row in self.store.parked.items():
            if key[0] == watcher:
                self.store.parked[key] = replace(row, state=ParkedState.SET_ASIDE.value)

    def declare(self, stream: Stream, declared: Declared) -> None:
        """Store a watcher, with its own trigger or with a sibling's equal trigger."""
        ref = declared.ref
        before, row = self._served_by.get(ref.watcher_id), self._find_equal(stream, declared)
        if row is None:
            number, kind = self.next_number(), declared.cls.__qualname__
            row = TriggerRow(number, kind, declared.kwargs, stream.key, (), ())
            self._classes[number] = declared.cls
        self._serve(stream, row, (*row.watchers, ref))
        self._served_by[ref.watcher_id] = row.trigger_id
        if before not in {None, row.trigger_id}:
            self.moves.update((before, row.trigger_id))

    def _find_equal(self, stream: Stream, declared: Declared) -> TriggerRow | None:
        """Return the siblings' trigger that the watcher joins; None if the watcher gets its own trigger."""
        watcher = declared.ref.watcher_id
        if self.sharing is None:
            return None
        equal = [
            row
            for row in stream.triggers.values()
            if self.class_of(row) is declared.cls
            and row.kwargs == declared.kwargs
            and row.trigger_id != self._served_by.get(watcher)
            and self.kind_of(row.watchers[0].watcher_id) == self.kind_of(watcher)
        ]
        return self.sharing.choose(equal)

    def _leave_trigger(self, stream: Stream, watcher: int) -> None:
        """Remove a watcher from its trigger, and delete the trigger if it has no other watcher."""
        row = stream.watchers.pop(watcher)
        others = tuple(one for one in row.watchers if one.watcher_id != watcher)
        if others:
            self._serve(stream, row, others)
        else:
            del self.store.triggers[row.trigger_id]

    def _serve(self, stream: Stream, row: TriggerRow, refs: tuple[WatcherRef, ...]) -> None:
        """Store a trigger with these watchers."""
        refs = tuple(sorted(refs, key=attrgetter("watcher_id")))
        names = tuple(f"watcher {one.watcher_id}" for one in refs)
        row = replace(row, watchers=refs, watcher_names=names)
        self.store.triggers[row.trigger_id] = row
        stream.watchers.update((one.watcher_id, row) for one in refs)

    def kind_of(self, watcher: int) -> int:
        """Return the kind of the watcher's simulated filter.

        If triggers are not shared, each watcher has a kind of its own.
        """
        return watcher if self.sharing is None else self.sharing.kind_of(watcher)

    def class_of(self, row: TriggerRow) -> type[BaseEventTrigger]:
        """Return the trigger class of a row."""
        return self._classes[row.trigger_id]

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def publish(self, stream: Stream) -> None:
        for _ in range(self.faults.random.choice((1, 1, 1, 2, 5))):
            self.publish_in(stream, self.faults.random.randrange(self.scenario.lanes))

    def publish_in(self, stream: Stream, lane: int) -> None:
        """Publish a message in this lane of the broker."""
        offset = len(stream.broker.lanes[lane].messages)
        stream.broker.publish(lane, stream.next_event(self.next_number(), lane, offset))

    def draw_loading_time(self) -> float | None:
        """Draw how many seconds it takes to load a trigger class; None if it takes no time."""
        random, deployments = self._loads, self.deployments
        if random is None or self.faults.are_over:
            return None
        if (deployments is not None and not deployments.is_under_way) or random.random() < 0.5:
            return None
        # Some classes take longer to load than streams wait for them.
        return random.choice((random.uniform(0, 2), random.uniform(0, 60)))

    def stand_still(self, *, is_behind: bool) -> None:
        """Perhaps let the process stand still for a while. A filter calls this method, and then continues."""
        is_busy = self.files is not None and self.files.is_busy
        if self._standstills is None or self.faults.are_over or is_busy:
            return
        seconds = self._standstills.draw(is_behind=is_behind)
        if seconds is not None:
            self.trace("the process stands still", seconds=round(seconds, 3))
            self.pass_time(seconds)

    @property
    def falls_behind(self) -> bool:
        """Whether `on_failure` is "catch_up" in the process that starts now."""
        rng = Random(f"{self.scenario.seed}/on_failure/{self.processes}")
        return rng.random() >= self.catching_up_draws.redeliver_share

    def trace(self, what: str, **details: Any) -> None:
        """Add a line to the trace, if there is one."""
        if self._trace is not None:
            text = " ".join(f"{name}={value}" for name, value in details.items())
            self._trace(self.time(), self.steps, f"{what} {text}")

    def _is_asked(self, watcher: int) -> bool:
        return any(request.watcher_id == watcher for request in self.store.replays.values())

    def _is_owner(self, owner: Owner) -> bool:
        digest, *lease = owner.fence
        return self.store.owners.leases[digest] == tuple(lease)
