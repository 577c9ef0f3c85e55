"""A model of a broker: its lanes (partitions or ordering keys), deliveries, positions and acknowledgements."""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final

from triggerer.synchronization import AutoResetEvent
from triggerer.testing.simulation.kernel.delivery import Consumer, Delivery, Message, Owner
from triggerer.testing.simulation.kernel.scenario import SIZES, has_marks, is_shared, sizes_of

if TYPE_CHECKING:
    from triggerer.testing.simulation.checks.checker import Checker
    from triggerer.testing.simulation.checks.lane_checker import LaneChecker
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector
    from triggerer.testing.simulation.kernel.scenario import Scenario


_MARKED: Final = 0.5
"""The fraction of messages after which a log with transactions has a transaction marker."""
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Lane:
    """A partition or an ordering key. It survives the end of a simulated process."""

    messages: list[Message] = field(default_factory=list)
    published: list[datetime] = field(default_factory=list)
    """The time of each publication, by the database's clock."""
    starts: list[int] = field(default_factory=lambda: [0])
    """The first offset of each incarnation: a lane that is deleted and created again has a new incarnation.

    Offsets continue across incarnations. Only the last incarnation exists.
    """
    numbers: list[int] = field(default_factory=list)
    """By offset, the number of each message in its incarnation. Some numbers have no message."""
    end: int = 0
    """The number that the next message of the last incarnation gets."""
    position: int = 0
    """A log's committed position. After an assignment of the lane, the broker delivers from here."""
    acked: set[int] = field(default_factory=set)
    """The offsets of a queue's messages that were acknowledged."""
    deliveries: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    consumer: Session | None = None
    """The session to which the lane is assigned, if any."""

    def is_done(self, offset: int) -> bool:
        return offset < self.position or offset in self.acked

    def find(self, start: datetime) -> int:
        """The offset of the first message that was published at `start` or later."""
        found = (
            offset
            for offset, at in enumerate(self.published)
            if offset >= self.starts[-1] and at >= start
        )
        return next(found, len(self.messages))

    def incarnation_of(self, offset: int) -> int:
        """The number of the incarnation to which an offset belongs or belonged."""
        return bisect_right(self.starts, offset) - 1

    def number_of(self, offset: int) -> int:
        """The number of a message, or the next number if the offset is the end."""
        return self.numbers[offset] if offset < len(self.numbers) else self.end

    @property
    def is_finished(self) -> bool:
        return len(self.messages) == self.position + len(self.acked)


class Broker:
    """One topic with its lanes. It survives the end of a simulated process."""

    def __init__(
        self, topic: str, scenario: Scenario, faults: FaultInjector, checker: Checker
    ) -> None:
        self.topic = topic
        self.scenario = scenario
        self.faults = faults
        self.checker = checker
        self._sizes = sizes_of(scenario.seed, topic)
        self.refusing = Random(f"{scenario.seed}/{topic}/refusing")
        """The random generator that decides which messages cannot be dumped or loaded now."""
        self.marking = Random(f"{scenario.seed}/{topic}/marks") if has_marks(scenario) else None
        """The random generator for skipped numbers, as after a transaction marker; None if no number is skipped."""
        self.lanes = [Lane() for _ in range(scenario.lanes)]
        self.is_shared = scenario.is_log and is_shared(scenario.seed, topic)
        self.session: Session | None = None
        """The newest session. It takes over all lanes or, if sessions share the lanes, some of them."""
        self.delivered = 0
        self.sessions = 0
        self.readers: dict[AutoResetEvent, None] = {}
        """A publication sets these events, to wake the readers that read lanes again while the stream runs."""
        self.now: Callable[[], datetime] = lambda: _LONG_AGO
        """Returns the present time, for the times of publications."""
        self._members: list[Session] = []
        self._by_event: dict[int, Message] = {}

    @property
    def is_finished(self) -> bool:
        return all(lane.is_finished for lane in self.lanes)

    def publish(self, lane: int, event: Any) -> Message:
        messages = self.lanes[lane].messages
        size_bytes = self._sizes.choice(SIZES)
        message = Message(self.topic, lane, len(messages), event, size_bytes)
        messages.append(message)
        self.lanes[lane].published.append(self.now())
        self.lanes[lane].numbers.append(self.lanes[lane].end)
        self.lanes[lane].end += 1
        if self.marking is not None and self.marking.random() < _MARKED:
            self.lanes[lane].end += 1
        self._by_event[id(event)] = message
        for arrived in self.readers:
            arrived.set()
        consumer = self.lanes[lane].consumer
        if consumer is not None:
            consumer.wake()
        return message

    def message_of(self, event: Any) -> Message:
        """The message whose raw event is this object."""
        return self._by_event[id(event)]

    def connect(self, owner: Owner) -> Session:
        """Open a session, which reads all lanes, or some if sessions share the lanes, from the committed positions."""
        self.sessions += 1
        session = Session(self, owner, self.sessions)
        self._members.append(session)
        self._elect()
        return session

    def disconnect(self, session: Session) -> None:
        """Give the session's lanes to another connected session, if any."""
        if session in self._members:
            self._members.remove(session)
            if session is self.session or self.is_shared:
                self._elect()

    def _elect(self) -> None:
        self._members = [session for session in self._members if session.is_alive]
        self.session = self._members[-1] if self._members else None
        for number, lane in enumerate(self.lanes):
            lane.consumer = self.session
            if self.is_shared and self._members:
                lane.consumer = self._members[number % len(self._members)]
            self._assign(number)

    def rebalance(self, lane: int) -> None:
        """Assign a lane to its consumer again, from the committed position."""
        if self.scenario.is_log:
            self._assign(lane)

    def recreate(self) -> None:
        """Delete a log and create it again, empty. Every session has to connect again."""
        for number, lane in enumerate(self.lanes):
            lane.starts.append(len(lane.messages))
            lane.end = 0
            lane.position = len(lane.messages)
            self._assign(number)
        for session in self._members:
            session.is_void = True
            session.wake()
        for arrived in self.readers:
            arrived.set()

    def _assign(self, lane: int) -> None:
        consumer = self.lanes[lane].consumer
        if consumer is not None:
            self.lanes[lane].generation += 1
            consumer.start_lane(lane)
            consumer.wake()

    # Called by consumers

    def commit(self, delivery: Delivery, position: int) -> None:
        """Move a log's position. Does nothing if the lane has been assigned again since the delivery."""
        lane = self.lanes[delivery.message.lane]
        if delivery.generation == lane.generation and delivery.consumer.is_alive:
            for message in lane.messages[lane.position : position]:
                self.checker.on_passed(message, delivery)
            lane.position = max(lane.position, position)

    def acknowledge_on_delivery(self, delivery: Delivery) -> bool:
        """On the fast path, acknowledge a message. Return False if it was acknowledged before, or the consumer died."""
        lane = self.lanes[delivery.message.lane]
        offset = delivery.message.offset
        if not delivery.consumer.is_alive or lane.is_done(offset):
            return False
        lane.acked.add(offset)
        return True

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge one message of a queue. A session that was replaced may do so too."""
        if delivery.consumer.is_alive:
            lane = self.lanes[delivery.message.lane]
            self.checker.on_passed(delivery.message, delivery)
            lane.acked.add(delivery.message.offset)


@dataclass(slots=True)
class Pause:
    """A lane that its consumer has paused."""

    fetched: int
    """The number of messages that were fetched before the pause, and that are still to come."""
    due: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Redeliveries that became due during the pause."""


class Session(Consumer):
    """A consumer's connection: its next offsets, redeliveries and pauses."""

    def __init__(self, broker: Broker, owner: Owner, number: int) -> None:
        super().__init__(owner, number)
        self.broker = broker
        self.lane_checker: LaneChecker | None = None
        self.is_void = False
        """Whether the topic was deleted after the session had begun."""
        self._pauses: dict[int, Pause] = {}
        self._next = [0] * len(broker.lanes)
        self._generations = [0] * len(broker.lanes)
        self._redeliveries: list[tuple[float, int, int, int]] = []
        self._rewound: dict[int, float] = {}
        """For each lane that was set back to a failed message, the time at which the lane's delivery continues."""
        self._again_to: dict[int, int] = {}
        """For each lane that was set back, the offset that it had reached. Messages up to there come again, even if
        they are committed.
        """
        self._arrived = AutoResetEvent()

    def start_lane(self, lane: int) -> None:
        model = self.broker.lanes[lane]
        # An assignment ends a pause, even if the lane stays with the same session.
        self._pauses.pop(lane, None)
        self._next[lane] = model.position
        self._rewound.pop(lane, None)
        self._again_to.pop(lane, None)
        self._generations[lane] = model.generation
        self._redeliveries = [item for item in self._redeliveries if item[2] != lane]
        heapq.heapify(self._redeliveries)

    def wake(self) -> None:
        self._arrived.set()

    def pause_lane(self, lane: int) -> None:
        """Pause a lane. From now on, only messages that the consumer has already fetched are delivered."""
        if lane not in self._pauses:
            self._pauses[lane] = Pause(self.broker.faults.random.choice((0, 0, 1, 3)))

    def resume_lane(self, lane: int) -> None:
        """End the pause of a lane. Does nothing if the lane is not paused, for example after a rebalance."""
        pause = self._pauses.pop(lane, None)
        if pause is not None:
            for item in pause.due:
                heapq.heappush(self._redeliveries, item)
            self.wake()

    def _is_paused(self, lane: int) -> bool:
        pause = self._pauses.get(lane)
        return pause is not None and not pause.fetched

    def redeliver_later(self, delivery: Delivery) -> None:
        """Deliver the message again after a delay. Does nothing if its lane was assigned again after this delivery."""
        message = delivery.message
        if delivery.generation == self.broker.lanes[message.lane].generation:
            delay = self.broker.scenario.redelivery_delay * self.broker.faults.random.uniform(
                0.5, 2.0
            )
            due = asyncio.get_running_loop().time() + delay
            self.broker.delivered += 1
            heapq.heappush(
                self._redeliveries, (due, self.broker.delivered, message.lane, message.offset)
            )
            self.wake()

    def rewind(self, delivery: Delivery) -> None:
        """Deliver the message and its successors in the lane again after a delay, as a log does."""
        lane, offset = delivery.message.lane, delivery.message.offset
        if delivery.generation != self.broker.lanes[lane].generation:
            return
        self.duplicated.update((lane, each) for each in range(offset + 1, self._next[lane]))
        self._again_to[lane] = max(self._next[lane], self._again_to.get(lane, 0))
        self._next[lane] = min(self._next[lane], offset)
        self._redeliveries = [item for item in self._redeliveries if item[2] != lane]
        heapq.heapify(self._redeliveries)
        delay = self.broker.scenario.redelivery_delay * self.broker.faults.random.uniform(0.5, 2.0)
        self._rewound[lane] = asyncio.get_running_loop().time() + delay
        self.wake()

    def take(self) -> Delivery | None:
        """Return a redelivery that is due, or else the next message of a lane drawn at random.

        None: no message is due, or the chosen message is done already. If it is done, another message may be due.
        """
        lanes = self.broker.lanes
        faults = self.broker.faults
        now = asyncio.get_running_loop().time()
        while self._redeliveries and self._redeliveries[0][0] <= now:
            item = heapq.heappop(self._redeliveries)
            _, _, lane, offset = item
            if not self._is_paused(lane):
                return None if lanes[lane].is_done(offset) else self._deliver(lane, offset)
            self._pauses[lane].due.append(item)
        candidates = self._lanes_with_messages()
        if not candidates:
            return None
        lane = faults.random.choice(candidates)
        offset = self._next[lane]
        self._next[lane] += 1
        if lanes[lane].is_done(offset) and offset >= self._again_to.get(lane, 0):
            return None
        if faults.occur(self.broker.scenario.broker_fault_rate):
            # Simulate a duplicate: deliver the message now, and again later.
            heapq.heappush(
                self._redeliveries, (now + faults.random.uniform(0.0, 2.0), -1, lane, offset)
            )
            self.duplicated.add((lane, offset))
        return self._deliver(lane, offset)

    def _deliver(self, lane: int, offset: int) -> Delivery:
        model = self.broker.lanes[lane]
        model.deliveries[offset] = model.deliveries.get(offset, 0) + 1
        if lane in self._pauses:
            self._pauses[lane].fetched -= 1
        message = model.messages[offset]
        # If the session has lost the lane and does not know that yet, the delivery has an old generation.
        return Delivery(message, self, self._generations[lane])

    def _lanes_with_messages(self) -> list[int]:
        """The lanes that have messages to deliver."""
        now = asyncio.get_running_loop().time()
        return [
            at
            for at, lane in enumerate(self.broker.lanes)
            if self._next[at] < len(lane.messages)
            and not self._is_paused(at)
            and self._rewound.get(at, now) <= now
            # In a consumer group (`is_shared`), a session reads only the lanes that are assigned to it. Otherwise, a
            # session that was replaced may continue to read.
            and (lane.consumer is self or not self.broker.is_shared)
        ]

    async def wait(self) -> None:
        """Wait until a message may be due."""
        if self._lanes_with_messages() or self.is_void:
            return
        self._arrived.clear()
        loop = asyncio.get_running_loop()
        timer = None
        due = [at for at in self._rewound.values() if at > loop.time()]
        due += [item[0] for item in self._redeliveries[:1]]
        if due:
            timer = loop.call_at(min(due), self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            if timer is not None:
                timer.cancel()
