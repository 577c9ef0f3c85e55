"""What a seed draws: sizes, bounds, and the rates of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

from triggerer.hosting.host import HostSettings


@dataclass(frozen=True, slots=True)
class Scenario:
    """Drawn once for each seed. A rate is the probability at each occasion; durations are in seconds."""

    seed: int
    streams: int
    lanes: int
    watchers: int
    is_acknowledged: bool
    """Ack mode; otherwise the fast path, without acknowledgements."""
    is_log: bool
    """Each lane has a position, fenced by generations (Kafka); otherwise each message is acknowledged (SQS)."""
    is_exclusive: bool
    """One writer at a time (SQLite); otherwise transactions run side by side (PostgreSQL)."""
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
    """The producer can pause one lane while the others go on; otherwise a full lane pauses all."""
    max_pending_bytes: int
    """Of the payloads that the recorder holds, of all streams."""
    max_outstanding_bytes: int
    max_outstanding_bytes_per_lane: int
    capacity: int
    """Of each of the two hosts, in triggers."""
    has_files: bool
    """Watchers stand in DAG files, which take time to import and are replaced; otherwise they are there at once."""


AMPLE = HostSettings().capacity
"""A capacity with room for everything that a simulation hosts."""


AMPLE_BYTES = 1_000_000
"""A bound in bytes that nothing reaches in a simulation."""
SIZES = (0, 1, 20, 20, 100, 400)
"""Of messages, in bytes: some alone are larger than a bound."""


def has_slow_modules(seed: int) -> bool:
    """Whether trigger classes take time to load, in a quarter of seeds."""
    return random.Random(f"{seed}/modules").random() < 0.25


def has_deployments(seed: int) -> bool:
    """Whether watchers get other arguments while messages come, in half of the seeds with slow modules."""
    return has_slow_modules(seed) and random.Random(f"{seed}/deployments").random() < 0.5


def has_outages(scenario: Scenario) -> bool:
    """Whether all watchers of a log fail at once, again and again, in a seventh of the seeds with one.

    What their filters need is away for a while. The log has one lane then, which is often at its bound: steps go to
    what comes again while more is outstanding.
    """
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/outages").random() < 1 / 7


def has_instant_answers(scenario: Scenario) -> bool:
    """Whether broker, store and filters answer within a few turns of the loop, in a tenth of the seeds with a log.

    What takes a thousandth of a second elsewhere takes none, so that things happen in the same turns which hardly ever
    do otherwise. There are few outstanding messages at a time, and many arrive at once.
    """
    is_log = scenario.is_acknowledged and scenario.is_log and not has_outages(scenario)
    return is_log and random.Random(f"{scenario.seed}/instant").random() < 0.1


def has_standstills(scenario: Scenario) -> bool:
    """Whether the process stands still at times while a filter has a message open.

    In a sixth of the seeds, and in half of those in which all watchers of a log fail at once: many catch up then.
    """
    share = 1 / 2 if has_outages(scenario) else 1 / 6
    return random.Random(f"{scenario.seed}/standstills").random() < share


def has_replays(scenario: Scenario) -> bool:
    """Whether somebody asks to have watchers read again, in a quarter of the seeds with a log.

    Not where all watchers fail at once: whoever reads again has read what failed, and nothing fails for all.
    """
    is_log = scenario.is_acknowledged and scenario.is_log and not has_outages(scenario)
    return is_log and random.Random(f"{scenario.seed}/replays").random() < 0.25


def has_setting_aside(scenario: Scenario) -> bool:
    """Whether the messages of a log can be stored for single watchers, in six of ten of the seeds with one.

    Elsewhere a lane stands at what its watcher cannot take, as with a producer that has no `dump_event`.
    """
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/set aside").random() < 0.6


def has_poison(scenario: Scenario) -> bool:
    """Whether single messages of a log are such that somebody never takes them, in a third of the seeds that set aside.

    There is one stream with three watchers then, and little else goes wrong: steps go to what is set aside.
    """
    is_other = has_outages(scenario) or has_instant_answers(scenario)
    is_possible = has_setting_aside(scenario) and not is_other
    return is_possible and random.Random(f"{scenario.seed}/poisons").random() < 1 / 3


def has_recreations(scenario: Scenario) -> bool:
    """Whether the topic of a log is deleted and made anew, in a fifth of the seeds with one."""
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/successors").random() < 0.2


def has_marks(scenario: Scenario) -> bool:
    """Whether places of a log hold no message, as the marks of transactions do, in a fifth of the seeds with one."""
    is_log = scenario.is_acknowledged and scenario.is_log
    return is_log and random.Random(f"{scenario.seed}/no message").random() < 0.2


def has_relapses(scenario: Scenario) -> bool:
    """Whether watchers get other arguments when they have just caught up, in a tenth of the seeds with a log.

    There is one stream then, and little else goes wrong: steps go to what falls behind for a moment, again and again.
    """
    is_log = scenario.is_acknowledged and scenario.is_log
    is_other = has_outages(scenario) or has_poison(scenario) or has_instant_answers(scenario)
    is_possible = is_log and not (is_other or has_standstills(scenario))
    return is_possible and random.Random(f"{scenario.seed}/deployed twice").random() < 0.1


def has_joint_advances(scenario: Scenario) -> bool:
    """Whether the producer of a queue is told of several lanes in one call, in three of ten seeds with one."""
    is_queue = scenario.is_acknowledged and not scenario.is_log
    return is_queue and random.Random(f"{scenario.seed}/advanced together").random() < 0.3


def has_shared_triggers(scenario: Scenario) -> bool:
    """Whether watchers with equal triggers share one, in two fifteenths of the seeds in ack mode.

    Not where single messages are such that one watcher never takes them, nor where all fail at once: who shares a
    trigger fails with it.
    """
    is_other = has_outages(scenario) or has_poison(scenario)
    is_possible = scenario.is_acknowledged and not is_other
    # Those below a thirtieth are as they were before: a planted bug is found by one of them alone.
    return is_possible and 1 / 30 <= random.Random(f"{scenario.seed}/siblings").random() < 1 / 6


def is_shared(seed: int, topic: str) -> bool:
    """Whether the consumers of a log divide its lanes, as the members of a group do; in half of the seeds."""
    return random.Random(f"{seed}/{topic}/shared").random() < 0.5


def has_executors(seed: int) -> bool:
    """Whether two executors share runs, in a world of their own; it takes time, so in a third of the seeds."""
    return random.Random(f"has executors {seed}").random() < 1 / 3


def has_timetables(seed: int) -> bool:
    """Whether schedulers make the runs of timetables, in a world of their own, in half of the seeds."""
    return random.Random(f"has timetables {seed}").random() < 0.5


def has_partitions(seed: int) -> bool:
    """Whether schedulers make the runs of partition keys, in a world of their own, in a third of the seeds."""
    return random.Random(f"has partitions {seed}").random() < 1 / 3


def sizes_of(seed: int, what: str) -> random.Random:
    """For what has to do with bytes: a generator of its own, so that the other draws of a seed stay what they were."""
    return random.Random(f"sizes {seed} {what}")


def has_busy_queue(scenario: Scenario) -> bool:
    """Whether a queue is all that there is, in two of five seeds with one: steps go to what is missed."""
    is_queue = scenario.is_acknowledged and not scenario.is_log
    return is_queue and random.Random(f"{scenario.seed}/busy").random() < 0.4
