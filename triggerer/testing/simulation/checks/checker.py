"""Checks the runtime's promises. The evidence comes from the models, never from the runtime itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from triggerer.abc import AdvanceOutcome
from triggerer.streams.delivery.ledger import IDLE
from triggerer.testing.simulation.checks.catching_up_checker import CatchingUpChecker, Identity
from triggerer.testing.simulation.checks.handover_checker import HandoverChecker
from triggerer.testing.simulation.checks.parked_checker import ParkedChecker
from triggerer.testing.simulation.checks.probe_checker import ProbeChecker
from triggerer.testing.simulation.checks.replay_checker import ReplayChecker
from triggerer.testing.simulation.checks.rest_checker import RestChecker
from triggerer.testing.simulation.checks.slow_subscriber_checker import SlowSubscriberChecker
from triggerer.testing.simulation.failing_filters import FilterErrors
from triggerer.testing.simulation.kernel.scenario import SIZES

if TYPE_CHECKING:
    from triggerer.domain.events import Fence, WatcherRef
    from triggerer.streams.delivery.group import Group
    from triggerer.streams.delivery.subscriber import Subscriber
    from triggerer.testing.simulation.kernel.delivery import Delivery, Message, Owner


class Violation(AssertionError):
    """A promise was broken. `rule` is a rule of `docs/notes/simulation.md`, such as S1 or L6."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """Pickle rule and detail, because seeds run in other processes, and `args` has only the message."""
        return Violation, (self.rule, self.detail)


class Checker:
    """Records what happened, and the first violation.

    The runtime calls the models, and the models call the checker. If the checker raised a
    violation, the runtime would catch it. So the checker only keeps the violation, and the
    supervisor raises it before the next step.
    """

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self.durable: set[Identity] = set()
        """The events that the store has committed."""
        self.refused: set[Identity] = set()
        reemitted = set[Identity]()
        self.catching_up = CatchingUpChecker(self.fail, (self.durable, self.refused, reemitted))
        """Switched on if watchers can fall behind alone."""
        self.handover = HandoverChecker(self.fail, self.catching_up.was_advanced)
        self.replays = ReplayChecker(self.fail, self.catching_up, reemitted)
        self.probes = ProbeChecker(self.fail)
        self.parked = ParkedChecker(self.fail, self.catching_up.may_be_set_aside)
        self.rest = RestChecker(self.fail)
        self.slow_subscribers = SlowSubscriberChecker(self.fail)
        self.filter_errors = FilterErrors()
        self.deleted: set[int] = set()
        """Watchers that were deleted on purpose. They need not see later messages."""
        self.replays.deleted = self.deleted
        self.is_taken_over: Callable[[Fence], bool] = lambda _: False
        self.is_owner: Callable[[Owner], bool] = lambda _: True
        self._owed: dict[str, set[int]] = {}
        """The watchers that must resolve each message, by stream."""
        self._settled: set[tuple[str, int, int]] = set()
        self._rejected: set[tuple[str, int, int]] = set()
        self._selectors: dict[Subscriber, Callable[[Any], bool]] = {}
        self.trace: Callable[..., None] = lambda *_, **__: None

    def fail(self, rule: str, detail: str) -> None:
        if self.violation is None:
            self.violation = Violation(rule, detail)

    # The broker

    def on_broadcast(self, delivery: Delivery) -> None:
        if not delivery.is_under_lease:
            self._fail_for_lease(delivery, "broadcasts")
        self.catching_up.broadcasts.record_broadcast(delivery)
        self.handover.on_broadcast(delivery)
        self.trace(
            "broadcast", message=delivery.message.key, n=delivery.number, to=delivery.cohort_names
        )
        if _assignment(delivery) in self._rejected and not delivery.is_duplicate:
            self.fail("S10", f"{delivery.message.key} was rejected, but is broadcast again")

    def owe(self, topic: str, watchers: set[int]) -> None:
        """Require that these watchers resolve each message of the stream, from the first on."""
        self._owed[topic] = watchers

    def forgive(self, topic: str, watcher: int) -> None:
        """Allow cohorts of the stream without this watcher, until a cohort contains it again."""
        self._owed.get(topic, set()).discard(watcher)

    def check_members(self, delivery: Delivery) -> None:
        """Check that the cohort of this delivery has all watchers of earlier cohorts, except deleted watchers."""
        owed = self._owed.setdefault(delivery.message.topic, set())
        if not self.is_owner(delivery.consumer.owner):
            return
        if missing := owed - delivery.cohort.keys() - self.deleted:
            self.fail(
                "S11",
                f"{delivery.message.key} is broadcast without the watchers {sorted(missing)}",
            )
        owed.update(delivery.cohort)

    def on_advance(self, delivery: Delivery, outcome: AdvanceOutcome) -> None:
        """Compare an advance's outcome with the filters' answers and the store's rows."""
        if not delivery.consumer.is_alive:
            return
        self.trace("advance", message=delivery.message.key, n=delivery.number, outcome=outcome)
        name = f"{delivery.message.key} (delivery {delivery.number}) advanced as {outcome}"
        cohort = delivery.cohort
        count = len(delivery.triggers)
        if outcome.acked + outcome.failed + outcome.rejected != count:
            self.fail("S3", f"{name}, but {count} had to answer, for {sorted(cohort)}")
        owed = {watcher for watcher in cohort if watcher not in self.deleted}
        # A trigger resolves a message once for all its watchers. Leave out watchers deleted after the broadcast.
        sharing = [watchers & owed for watchers in delivery.triggers]
        answered = {watcher for watcher in owed if self._has_accepted(delivery, watcher)}
        accepted = answered | self._find_safe(delivery, owed)
        rejected = {watcher for watcher in owed if _has_rejected(delivery, watcher)}
        # A trigger may ack a message once all of the trigger's watchers have accepted the message. If another trigger
        # failed the message, one accepting watcher is enough: the broker redelivers the message to all watchers anyway.
        is_partial = bool(outcome.failed)
        able = sum(
            watchers <= accepted or (is_partial and not watchers.isdisjoint(accepted))
            for watchers in sharing
        )
        if outcome.acked > able:
            self.fail("S2/S7", f"{name}, but only {sorted(accepted)} of {sorted(owed)} accepted it")
        if outcome.rejected > sum(
            not watchers or bool(watchers & rejected) for watchers in sharing
        ):
            self.fail("S3", f"{name}, but only {sorted(rejected)} rejected it")
        # A rejected message that cannot be parked, because a bound is reached, counts as failed.
        may_fail = set() if self.parked.has_room else rejected
        healthy = {
            watcher
            for watcher in (answered | rejected) - may_fail
            if self._is_healthy(delivery, watcher)
            # Leave out a watcher with a backlog, because it gets the message again.
            and not (
                self.catching_up.is_on and self.catching_up.is_behind(watcher, delivery.message)
            )
        }
        if self.catching_up.is_on and outcome.failed:
            # If `falls_behind` is true, a single watcher that fails falls behind, and the outcome is not failed. So a
            # failed outcome means that this message, or an earlier one of the lane, has failed for all watchers.
            for_all = outcome.failed == count or self.catching_up.falls_behind
            self.catching_up.broadcasts.mark_failed(delivery, for_all=for_all)
        fails_too = self.catching_up.broadcasts.fails_too(delivery)
        least = sum(bool(watchers) and watchers <= healthy for watchers in sharing)
        if outcome.failed > count - least and not fails_too:
            self.fail("S8", f"{name}, but {sorted(healthy)} did nothing wrong")
        if not outcome.failed and outcome.acked + outcome.rejected:
            self._settled.add(_assignment(delivery))
            if outcome.rejected:
                self._rejected.add(_assignment(delivery))
            if self.catching_up.is_on:
                spared = {watcher for watcher in owed if self._is_spared(delivery, watcher)}
                # The simulation may end a lease too early, while its old owner still works. The old group may then
                # advance past messages that the new owner's watchers never get. This is no violation.
                is_owner = self.is_owner(delivery.consumer.owner)
                excused = rejected | spared if is_owner else owed
                if outcome.rejected and is_owner:
                    self._check_set_aside(delivery, rejected)
                self.catching_up.on_done(delivery, excused, owed)

    def _check_set_aside(self, delivery: Delivery, rejected: set[int]) -> None:
        """Check an advance past a message that live filters have rejected.

        For each watcher that rejected the message, the message must be parked, or the watcher must be behind at this
        message or an earlier one.
        """
        catching_up, message = self.catching_up, delivery.message
        if not catching_up.sets_aside:
            return
        missing = {
            watcher
            for watcher in rejected
            if catching_up.has_rejected_live(watcher, message.key)
            and not (
                catching_up.is_excused(watcher, message.key)
                or catching_up.is_behind(watcher, message)
                or catching_up.is_standing_before(watcher, message)
            )
        }
        if missing:
            self.fail("S13", f"{sorted(missing)} rejected {message.key}, but it is not parked")

    def _find_safe(self, delivery: Delivery, owed: set[int]) -> set[int]:
        """Return the watchers that cannot lose the message, because of their backlog or their catch-up."""
        if not self.catching_up.is_on:
            return set()
        return {watcher for watcher in owed if self.catching_up.is_safe(watcher, delivery.message)}

    def check_lease(self, delivery: Delivery, what: str) -> None:
        """Check that the lease is not over when its group broadcasts or advances (`what`)."""
        if self.is_lease_over(delivery.consumer.owner):
            self._fail_for_lease(delivery, what)

    def is_lease_over(self, owner: Owner) -> bool:
        """Whether the owner's lease is over, so that its group must stop."""
        return owner.is_over or (owner.is_alive and self.is_taken_over(owner.fence))

    def _fail_for_lease(self, delivery: Delivery, what: str) -> None:
        fence = delivery.consumer.owner.fence
        self.fail("S6", f"{fence} is over, but its group {what} {delivery.message.key}")

    def on_dead_letter(self, delivery: Delivery) -> None:
        self._settled.add(_assignment(delivery))
        if self.catching_up.is_on:
            watchers = delivery.cohort.keys() - self.deleted
            self.catching_up.on_done(delivery, watchers, watchers)

    def on_passed(self, message: Message, delivery: Delivery) -> None:
        """Check a message that the broker will not deliver again after the advance of `delivery`."""
        if (message.key, *_assignment(delivery)[1:]) not in self._settled:
            self.fail(
                "S1", f"the position passed {message.key}, which some watchers have not resolved"
            )

    def _has_accepted(self, delivery: Delivery, watcher: int) -> bool:
        answer = delivery.answers.get(watcher)
        if answer is None:
            return self._is_spared(delivery, watcher)
        if answer.is_rejected:
            return False
        return all(identity in self.durable for identity in _derived(delivery, watcher))

    def _is_spared(self, delivery: Delivery, watcher: int) -> bool:
        """Whether the watcher's selector leaves out the message, and the watcher's filter has not seen it."""
        subscriber = delivery.cohort.get(watcher)
        is_selected = self._selectors.get(subscriber) if subscriber is not None else None
        if is_selected is None or watcher in delivery.opened:
            return False
        return not is_selected(delivery.message.event)

    def _is_healthy(self, delivery: Delivery, watcher: int) -> bool:
        subscriber = delivery.cohort[watcher]
        if subscriber is None or not subscriber.is_present:
            return False
        if not self.is_owner(delivery.consumer.owner):
            return False
        if self.catching_up.was_behind(watcher, delivery):
            return False
        return not any(one in self.refused for one in _derived(delivery, watcher))

    # The runtime

    def on_opened(
        self, delivery: Delivery, subscriber: Subscriber, watcher: int, *, is_owed: bool
    ) -> None:
        """Check a delivery when a live filter gets it.

        Args:
            is_owed: True in ack mode, where the filter must resolve the message.
        """
        self.trace("opened", message=delivery.message.key, n=delivery.number, watcher=watcher)
        if watcher in delivery.opened:
            self.fail("S3", f"watcher {watcher} was handed {delivery.message.key} twice")
        delivery.opened.add(watcher)
        # Watchers can share a subscriber. A watcher that joined after the broadcast gets the message too, but need not
        # resolve it.
        owes = watcher in delivery.cohort or subscriber not in delivery.cohort.values()
        if is_owed and owes and delivery.cohort.get(watcher) is not subscriber:
            self.fail(
                "S3", f"watcher {watcher} reads {delivery.message.key}, which it does not owe"
            )
        owner = delivery.consumer.owner
        if self.catching_up.is_on and owner.is_alive and self.is_owner(owner):
            self.catching_up.on_opened(watcher, delivery.message)
            self.replays.on_given(watcher, delivery.message)
            self.catching_up.on_opened_live(watcher, delivery)
            self.handover.on_opened_live(watcher, delivery)

    def record_selector(self, subscriber: Subscriber, is_selected: Callable[[Any], bool]) -> None:
        """Record that the subscriber gets only the selected events from now on."""
        self._selectors[subscriber] = is_selected
        if self.catching_up.is_on:
            self.record_source(subscriber, subscriber.source.watchers)

    def record_source(self, subscriber: Subscriber | None, watchers: Iterable[WatcherRef]) -> None:
        """Record the watchers that the subscriber serves."""
        is_selected = self._selectors.get(subscriber) if subscriber is not None else None
        if self.catching_up.is_on and is_selected is not None:
            selected = dict.fromkeys((one.watcher_id for one in watchers), is_selected)
            self.catching_up.is_selected.update(selected)

    def has_selector(self, subscriber: Subscriber) -> bool:
        return subscriber in self._selectors

    def check_group(self, group: Group) -> None:
        """Check at each step that the counts of outstanding messages add up and are within their bounds."""
        state = group.state
        ledger, lanes, settings = state.ledger, state.lanes, state.settings
        if lanes.outstanding > settings.max_outstanding:
            self.fail(
                "S9", f"{lanes.outstanding} outstanding, the bound is {settings.max_outstanding}"
            )
        counted, bound = 0, settings.max_outstanding_per_lane
        counted_bytes, bound_bytes = 0, settings.max_outstanding_bytes_per_lane
        # Allow for one message: the message that reaches a bound in bytes may exceed it.
        largest = max(SIZES)
        if lanes.outstanding_bytes >= settings.max_outstanding_bytes + largest:
            self.fail(
                "S9",
                f"{lanes.outstanding_bytes} bytes outstanding,"
                f" the bound is {settings.max_outstanding_bytes}",
            )
        for lane in lanes:
            counted += lane.outstanding
            counted_bytes += lane.outstanding_bytes
            if lane.outstanding_bytes >= bound_bytes + largest:
                self.fail(
                    "S9",
                    f"lane {lane.key}: {lane.outstanding_bytes} bytes outstanding,"
                    f" the bound is {bound_bytes}",
                )
            if lane.outstanding > bound:
                self.fail(
                    "S9", f"lane {lane.key}: {lane.outstanding} outstanding, the bound is {bound}"
                )
        if counted != lanes.outstanding:
            self.fail("S3", f"the lanes count {counted} messages, the stream {lanes.outstanding}")
        if counted_bytes != lanes.outstanding_bytes or (not counted and counted_bytes):
            self.fail(
                "S3",
                f"the lanes count {counted_bytes} bytes, the stream {lanes.outstanding_bytes}",
            )
        next_seq, passed, size = ledger.next_seq, ledger.passed, settings.subscriber_queue_size
        for subscriber in group.subscribers:
            pulled, done = subscriber.pulled, subscriber.done
            if pulled == done == IDLE and self.has_selector(subscriber):
                continue
            if not (passed <= done <= pulled <= next_seq and pulled - done <= 1):
                self.fail(
                    "S3", f"{subscriber.name}: {passed=}, {done=}, {pulled=}, broadcast={next_seq}"
                )
            if next_seq - pulled > size:
                self.fail(
                    "S9", f"{subscriber.name} has {next_seq - pulled} events in its queue of {size}"
                )


def _assignment(delivery: Delivery) -> tuple[str, int, int]:
    return delivery.message.key, delivery.consumer.number, delivery.generation


def _derived(delivery: Delivery, watcher: int) -> list[Identity]:
    answer = delivery.answers.get(watcher)
    count = answer.yielded if answer is not None else 0
    return [(watcher, delivery.message.key, ordinal) for ordinal in range(count)]


def _has_rejected(delivery: Delivery, watcher: int) -> bool:
    answer = delivery.answers.get(watcher)
    if answer is None:
        # A rejection counts at once, while the filter still has the event open.
        return watcher in delivery.opened
    return answer.is_rejected
