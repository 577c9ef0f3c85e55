"""The scenario that a seed draws: sizes, bounds, and the rates of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

from triggerer.hosting.host import HostSettings


@dataclass(frozen=True, slots=True)
class Scenario:
    """The sizes, bounds and rates of one seed.

    A rate is the probability of a fault at each occasion. Times are in seconds.
    """

    seed: int
    streams: int
    lanes: int
    watchers: int
    is_acknowledged: bool
    """Whether streams are in ack mode. Otherwise they use the fast path, without acknowledgements."""
    is_log: bool
    """Whether each lane has a position, as in Kafka. Otherwise each message is acknowledged, as in SQS."""
    is_exclusive: bool
    """Whether there is one writer at a time, as in SQLite. Otherwise transactions run side by side, as in PostgreSQL.
    """
    side_by_side: bool
    delivery_limit: int
    redelivery_delay: float
    ack_timeout: float
    queue_size: int
    overflow_grace: float
    max_outstanding: int
    max_pending: int
    burst: int
    max_batch_rows: int
    restart_longest: float
    lease: float
    latency: float
    crash_rate: float
    action_interval: float
    broker_fault_rate: float
    store_fault_rate: float
    filter_fault_rate: float
    constructor_fault_rate: float
    slow_rate: float
    max_outstanding_per_lane: int
    pauses_lanes: bool
    """Whether the producer can pause one lane while the others continue. Otherwise a full lane pauses the stream."""
    max_pending_bytes: int
    """The most bytes of payloads that may wait in the recorder."""
    max_outstanding_bytes: int
    max_outstanding_bytes_per_lane: int
    capacity: int
    """How many triggers each of the two hosts may host."""
    has_files: bool
    """Whether the watchers are declared in DAG files, which take time to import and are replaced. Otherwise `World`
    declares the watchers itself.
    """


AMPLE = HostSettings().capacity
"""A capacity with room for all triggers of a simulation."""


AMPLE_BYTES = 1_000_000
"""A bound in bytes that is never reached."""
SIZES = (0, 1, 20, 20, 100, 400)
"""The sizes of messages in bytes. A single message can exceed a bound."""


def has_slow_modules(seed: int) -> bool:
    """Whether trigger classes take time to load: in a quarter of seeds."""
    return random.Random(f"{seed}/modules").random() < 0.25


def has_deployments(seed: int) -> bool:
    """Whether watchers get other arguments while messages come: in half of the seeds with slow modules."""
    return has_slow_modules(seed) and random.Random(f"{seed}/deployments").random() < 0.5


def has_outages(scenario: Scenario) -> bool:
    """Whether all watchers of a log fail at once, again and again: in a seventh of the seeds with a log.

    This simulates the failure of a service that all filters need. The log then has one lane and a low bound of
    outstanding messages, so that messages are often redelivered while others are outstanding.
    """
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/outages").random() < 1 / 7


def has_instant_answers(scenario: Scenario) -> bool:
    """Whether broker, store and filters answer at once: in a tenth of the seeds with a log and without outages.

    In these seeds, many actions fall into one turn of the event loop. Messages arrive in floods, and few may be
    outstanding at once.
    """
    is_log = scenario.is_acknowledged and scenario.is_log and not has_outages(scenario)
    return is_log and random.Random(f"{scenario.seed}/instant").random() < 0.1


def has_standstills(scenario: Scenario) -> bool:
    """Whether the process stands still at times while a filter has a message open.

    True for half of the seeds with outages, in which many watchers catch up, and for a sixth of the other seeds.
    """
    share = 1 / 2 if has_outages(scenario) else 1 / 6
    return random.Random(f"{scenario.seed}/standstills").random() < share


def has_replays(scenario: Scenario) -> bool:
    """Whether an operator replays watchers: in a quarter of the seeds with a log.

    Seeds with outages have no replays. In an outage all watchers must fail the same messages, but a watcher with a
    replay reads these messages only later.
    """
    is_log = scenario.is_acknowledged and scenario.is_log and not has_outages(scenario)
    return is_log and random.Random(f"{scenario.seed}/replays").random() < 0.25


def has_setting_aside(scenario: Scenario) -> bool:
    """Whether messages of a log can be parked for single watchers: in six of ten seeds with a log.

    In other seeds the producer has no `dump_event`, so a watcher stays at a message that it fails each time.
    """
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/set aside").random() < 0.6


def has_poison(scenario: Scenario) -> bool:
    """Whether a log has messages that one watcher fails each time: in a third of the seeds with parking.

    A seed with such messages has one stream with three watchers and few other faults, so that most of its steps deal
    with parked messages.
    """
    is_other = has_outages(scenario) or has_instant_answers(scenario)
    is_possible = has_setting_aside(scenario) and not is_other
    return is_possible and random.Random(f"{scenario.seed}/poisons").random() < 1 / 3


def has_recreations(scenario: Scenario) -> bool:
    """Whether the topic of a log is deleted and created again: in a fifth of the seeds with a log."""
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/successors").random() < 0.2


def has_marks(scenario: Scenario) -> bool:
    """Whether some positions have no message, as at Kafka's transaction markers: in a fifth of the seeds with a log."""
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/no message").random() < 0.2


def has_relapses(scenario: Scenario) -> bool:
    """Whether watchers get new arguments when they have just caught up: in a tenth of the suitable seeds.

    A suitable seed has a log, and no outages, poison, instant answers or standstills. Each change of arguments makes a
    watcher fall behind for a moment. The chosen seeds have one stream and few other faults, so that this happens often.
    """
    is_log = scenario.is_acknowledged and scenario.is_log
    is_other = has_outages(scenario) or has_poison(scenario) or has_instant_answers(scenario)
    is_possible = is_log and not (is_other or has_standstills(scenario))
    return is_possible and random.Random(f"{scenario.seed}/deployed twice").random() < 0.1


def has_joint_advances(scenario: Scenario) -> bool:
    """Whether the producer of a queue advances several lanes in one call: in three of ten seeds with a queue."""
    is_queue = scenario.is_acknowledged and not scenario.is_log
    return is_queue and random.Random(f"{scenario.seed}/advanced together").random() < 0.3


def has_shared_triggers(scenario: Scenario) -> bool:
    """Whether watchers with equal triggers share one trigger: in 2 of 15 of the suitable seeds in ack mode.

    Seeds with outages or poison have no shared triggers, because watchers that share a trigger fail together.
    """
    is_other = has_outages(scenario) or has_poison(scenario)
    is_possible = scenario.is_acknowledged and not is_other
    # One of the planted bugs is found by a single seed, and only without shared triggers. This seed's draw is below
    # 1/30, so the lower bound excludes the seed.
    return is_possible and 1 / 30 <= random.Random(f"{scenario.seed}/siblings").random() < 1 / 6


def is_shared(seed: int, topic: str) -> bool:
    """Whether the consumers of a log divide its lanes, as a Kafka consumer group does: for half of the topics."""
    return random.Random(f"{seed}/{topic}/shared").random() < 0.5


def has_executors(seed: int) -> bool:
    """Whether the seed has a separate world with two executors that share runs.

    True for a third of the seeds, to save time.
    """
    return random.Random(f"has executors {seed}").random() < 1 / 3


def has_timetables(seed: int) -> bool:
    """Whether the seed has a separate world whose schedulers create runs for timetables; true for half of the seeds."""
    return random.Random(f"has timetables {seed}").random() < 0.5


def has_partitions(seed: int) -> bool:
    """Whether the seed has a separate world whose schedulers create runs for partition keys.

    True for a third of the seeds.
    """
    return random.Random(f"has partitions {seed}").random() < 1 / 3


def sizes_of(seed: int, what: str) -> random.Random:
    """Return a random generator for sizes in bytes. Its draws do not change a seed's other random choices."""
    return random.Random(f"sizes {seed} {what}")


def has_busy_queue(scenario: Scenario) -> bool:
    """Whether most steps go to the backlogs of a queue: in two of five seeds with a queue.

    The seed then has one stream with one lane, three watchers, and few other faults.
    """
    is_queue = scenario.is_acknowledged and not scenario.is_log
    return is_queue and random.Random(f"{scenario.seed}/busy").random() < 0.4
