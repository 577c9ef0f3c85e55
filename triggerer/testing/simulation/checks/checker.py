"""What must always hold, checked by evidence that the models collect, never by what the runtime says of itself."""

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
    """A promise was broken. `rule` is one of those in `docs/notes/simulation.md`, such as S1 or L6."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """Seeds run in other processes, and exceptions are pickled by their `args`, which are the message alone."""
        return Violation, (self.rule, self.detail)


class Checker:
    """Notes what happened, and the first violation, which the supervisor raises before the next step.

    It is told from within the models, under the runtime's own handlers, so it notes a violation rather than raise it.
    """

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self.durable: set[Identity] = set()
        """What the store has committed."""
        self.refused: set[Identity] = set()
        made_again = set[Identity]()
        self.catching_up = CatchingUpChecker(self.fail, (self.durable, self.refused, made_again))
        """Off, unless watchers fall behind alone."""
        self.handover = HandoverChecker(self.fail, self.catching_up.was_advanced)
        self.replays = ReplayChecker(self.fail, self.catching_up, made_again)
        self.probes = ProbeChecker(self.fail)
        self.parked = ParkedChecker(self.fail, self.catching_up.may_be_set_aside)
        self.rest = RestChecker(self.fail)
        self.slow_subscribers = SlowSubscriberChecker(self.fail)
        self.filter_errors = FilterErrors()
        self.deleted: set[int] = set()
        """Watchers that were deleted on purpose: they need not see anything any more."""
        self.replays.deleted = self.deleted
        self.is_taken_over: Callable[[Fence], bool] = lambda _: False
        self.is_owner: Callable[[Owner], bool] = lambda _: True
        self._owed: dict[str, set[int]] = {}
        """By stream: the watchers that have to see each message."""
        self._settled: set[tuple[str, int, int]] = set()
        self._rejected: set[tuple[str, int, int]] = set()
        self._selectors: dict[Subscriber, Callable[[Any], bool]] = {}
        self.trace: Callable[..., None] = lambda *_, **__: None

    def fail(self, rule: str, detail: str) -> None:
        if self.violation is None:
            self.violation = Violation(rule, detail)

    # The broker's side

    def on_broadcast(self, delivery: Delivery) -> None:
        if not delivery.is_under_lease:
            self._fail_for_lease(delivery, "broadcasts")
        self.catching_up.broadcasts.record_broadcast(delivery)
        self.handover.on_broadcast(delivery)
        self.trace(
            "broadcast", message=delivery.message.key, n=delivery.number, to=delivery.cohort_names
        )
        if _assignment(delivery) in self._rejected and not delivery.is_duplicate:
            self.fail("S10", f"{delivery.message.key} was rejected, and is handed out again")

    def owe(self, topic: str, watchers: set[int]) -> None:
        """These watchers have to see each message of the stream from its first one on."""
        self._owed[topic] = watchers

    def forgive(self, topic: str, watcher: int) -> None:
        """This watcher need not see the messages of the stream, until it is one of those that have to answer."""
        self._owed.get(topic, set()).discard(watcher)

    def check_members(self, delivery: Delivery) -> None:
        """Who is one of those that have to answer stays one, until its watcher is deleted."""
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
        """The producer advances with `outcome`: compare it with what the filters did and what the store holds."""
        if not delivery.consumer.is_alive:
            return
        self.trace("advance", message=delivery.message.key, n=delivery.number, outcome=outcome)
        name = f"{delivery.message.key} (delivery {delivery.number}) advanced as {outcome}"
        cohort = delivery.cohort
        count = len(delivery.triggers)
        if outcome.acked + outcome.failed + outcome.rejected != count:
            self.fail("S3", f"{name}, but {count} had to answer, for {sorted(cohort)}")
        owed = {watcher for watcher in cohort if watcher not in self.deleted}
        # A trigger answers once for all of its watchers; without those that were deleted, perhaps for none.
        sharing = [watchers & owed for watchers in delivery.triggers]
        answered = {watcher for watcher in owed if self._has_accepted(delivery, watcher)}
        accepted = answered | self._find_safe(delivery, owed)
        rejected = {watcher for watcher in owed if _has_rejected(delivery, watcher)}
        # Where it comes again, one that passes it for a watcher that is behind counts by the others.
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
        # At a bound what was rejected cannot be set aside: it has failed.
        may_fail = set() if self.parked.has_room else rejected
        healthy = {
            watcher
            for watcher in (answered | rejected) - may_fail
            if self._is_healthy(delivery, watcher)
            # It is given it once more.
            and not (
                self.catching_up.is_on and self.catching_up.is_behind(watcher, delivery.message)
            )
        }
        if self.catching_up.is_on and outcome.failed:
            # Who has failed it alone falls behind: it has failed for all, or lies behind one that has, and so on.
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
                # A lease may end sooner than was agreed: what its group passes over until it knows, the watchers of the
                # next owner need not have.
                is_owner = self.is_owner(delivery.consumer.owner)
                excused = rejected | spared if is_owner else owed
                if outcome.rejected and is_owner:
                    self._check_set_aside(delivery, rejected)
                self.catching_up.on_done(delivery, excused, owed)

    def _check_set_aside(self, delivery: Delivery, rejected: set[int]) -> None:
        """What a live filter has rejected is set aside for its watcher before the broker is told."""
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
            )
        }
        if missing:
            self.fail("S13", f"{sorted(missing)} rejected {message.key}, and it is not set aside")

    def _find_safe(self, delivery: Delivery, owed: set[int]) -> set[int]:
        """Those that are behind at it or before it, or have dealt with it while they were."""
        if not self.catching_up.is_on:
            return set()
        return {watcher for watcher in owed if self.catching_up.is_safe(watcher, delivery.message)}

    def check_lease(self, delivery: Delivery, what: str) -> None:
        """A group begins to do `what`, which it may do only while its lease holds.

        Not when its instance knows that it is over, and not when the database shows another owner: by then it has to
        know from its own clock.
        """
        if self.is_lease_over(delivery.consumer.owner):
            self._fail_for_lease(delivery, what)

    def is_lease_over(self, owner: Owner) -> bool:
        """Whether nothing may be done under its lease any more."""
        return owner.is_over or (owner.is_alive and self.is_taken_over(owner.fence))

    def _fail_for_lease(self, delivery: Delivery, what: str) -> None:
        fence = delivery.consumer.owner.fence
        self.fail("S6", f"{fence} is over, and its group {what} {delivery.message.key}")

    def on_dead_letter(self, delivery: Delivery) -> None:
        self._settled.add(_assignment(delivery))
        if self.catching_up.is_on:
            watchers = delivery.cohort.keys() - self.deleted
            self.catching_up.on_done(delivery, watchers, watchers)

    def on_passed(self, message: Message, delivery: Delivery) -> None:
        """The broker will not deliver `message` again, because of the advance of `delivery`."""
        if (message.key, *_assignment(delivery)[1:]) not in self._settled:
            self.fail(
                "S1", f"the position passed {message.key}, which is not resolved by everybody"
            )

    def _has_accepted(self, delivery: Delivery, watcher: int) -> bool:
        answer = delivery.answers.get(watcher)
        if answer is None:
            return self._is_spared(delivery, watcher)
        if answer.is_rejected:
            return False
        return all(identity in self.durable for identity in _derived(delivery, watcher))

    def _is_spared(self, delivery: Delivery, watcher: int) -> bool:
        """Whether the watcher's selector leaves it out, and its filter has not seen it."""
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

    # The runtime's side

    def on_opened(
        self, delivery: Delivery, subscriber: Subscriber, watcher: int, *, is_owed: bool
    ) -> None:
        """A filter got `delivery`; `is_owed`: it has to answer for it, which is so except on the fast path."""
        self.trace("opened", message=delivery.message.key, n=delivery.number, watcher=watcher)
        if watcher in delivery.opened:
            self.fail("S3", f"watcher {watcher} was handed {delivery.message.key} twice")
        delivery.opened.add(watcher)
        # Who has come to its trigger since it was broadcast is given it, and does not owe it.
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
        """From now on it is not to get the events that are not selected."""
        self._selectors[subscriber] = is_selected
        if self.catching_up.is_on:
            self.record_source(subscriber, subscriber.source.watchers)

    def record_source(self, subscriber: Subscriber | None, watchers: Iterable[WatcherRef]) -> None:
        """It serves these watchers."""
        is_selected = self._selectors.get(subscriber) if subscriber is not None else None
        if self.catching_up.is_on and is_selected is not None:
            selected = dict.fromkeys((one.watcher_id for one in watchers), is_selected)
            self.catching_up.is_selected.update(selected)

    def has_selector(self, subscriber: Subscriber) -> bool:
        return subscriber in self._selectors

    def check_group(self, group: Group) -> None:
        """At every step: what is outstanding adds up, and is within its bounds."""
        state = group.state
        ledger, lanes, settings = state.ledger, state.lanes, state.settings
        if lanes.outstanding > settings.max_outstanding:
            self.fail("S9", f"{lanes.outstanding} outstanding of {settings.max_outstanding}")
        counted, bound = 0, settings.max_outstanding_per_lane
        counted_bytes, bound_bytes = 0, settings.max_outstanding_bytes_per_lane
        # The message that reaches a bound in bytes may exceed it.
        largest = max(SIZES)
        if lanes.outstanding_bytes >= settings.max_outstanding_bytes + largest:
            self.fail(
                "S9",
                f"{lanes.outstanding_bytes} bytes outstanding of {settings.max_outstanding_bytes}",
            )
        for lane in lanes:
            counted += lane.outstanding
            counted_bytes += lane.outstanding_bytes
            if lane.outstanding_bytes >= bound_bytes + largest:
                self.fail(
                    "S9",
                    f"lane {lane.key}: {lane.outstanding_bytes} bytes outstanding of {bound_bytes}",
                )
            if lane.outstanding > bound:
                self.fail("S9", f"lane {lane.key}: {lane.outstanding} outstanding of {bound}")
        if counted != lanes.outstanding:
            self.fail("S3", f"the lanes hold {counted}, outstanding are {lanes.outstanding}")
        if counted_bytes != lanes.outstanding_bytes or (not counted and counted_bytes):
            self.fail(
                "S3",
                f"the lanes hold {counted_bytes} bytes, outstanding are {lanes.outstanding_bytes}",
            )
        head, passed, size = ledger.head, ledger.passed, settings.subscriber_queue_size
        for subscriber in group.subscribers:
            pulled, done = subscriber.pulled, subscriber.done
            if pulled == done == IDLE and self.has_selector(subscriber):
                continue
            if not (passed <= done <= pulled <= head and pulled - done <= 1):
                self.fail(
                    "S3", f"{subscriber.name}: {passed=}, {done=}, {pulled=}, broadcast={head}"
                )
            if head - pulled > size:
                self.fail("S9", f"{subscriber.name} lags {head - pulled} events of {size}")


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
