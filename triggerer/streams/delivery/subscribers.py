"""The subscribers of a group: joining, failing and leaving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from triggerer.abc import BaseEventTrigger
from triggerer.domain.events import EventSink, EventSource, WatcherRef
from triggerer.errors import GroupEnded
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.pending_limit import PendingLimit


class Subscribers:
    """The subscribers of one group.

    Args:
        on_interrupted: Called with a subscriber that has failed while its filter awaited the stream. The stream raises
            the subscriber's error in the filter, which may catch the error and continue.
    """

    def __init__(
        self,
        state: GroupState,
        *,
        sink: EventSink,
        pending: PendingLimit,
        on_interrupted: Callable[[Subscriber], None],
    ) -> None:
        self.present: dict[Subscriber, None] = {}
        self.departed: dict[Subscriber, None] = {}
        """Subscribers that have failed or left while some of their events wait for the store's answer."""
        self._gone: list[Subscriber] = []
        """Subscribers that have failed or left. Each had passed an event that may still be outstanding."""
        self._state = state
        self._sink = sink
        self._pending = pending
        self._on_interrupted = on_interrupted

    def __iter__(self) -> Iterator[Subscriber]:
        """Yield the present subscribers."""
        return iter(self.present)

    def __len__(self) -> int:
        return len(self.present)

    def answered_for(self, seq: int) -> Iterator[Subscriber]:
        """Yield the present subscribers that must resolve this event, and earlier subscribers that passed it."""
        for subscriber in self.present:
            if subscriber.joined_at <= seq:
                yield subscriber
        for subscriber in self._gone:
            assert subscriber.failed_from is not None
            if subscriber.joined_at <= seq < subscriber.failed_from:
                yield subscriber

    def join(
        self,
        trigger: BaseEventTrigger,
        *,
        name: str,
        source: EventSource,
        was_absent: bool = False,
        on_refused: Callable[[Exception], None] | None = None,
    ) -> Subscriber:
        """Add a subscriber for `trigger`. The subscriber must resolve every event that is broadcast from now on.

        Args:
            on_refused: Called with the error when the store refuses an event of the subscriber. Synchronous, and must
                not raise.
        Raises:
            GroupEnded: The group is ending; wait for the next one.
        """
        state = self._state
        if state.is_ending:
            raise GroupEnded(f"The shared stream {state.name} is ending", key=state.key)
        subscriber = Subscriber(
            state,
            trigger,
            name=name,
            source=source,
            sink=self._sink,
            pending=self._pending,
            on_refused=on_refused,
            on_departed=self._forget,
        )
        state.ledger.join(subscriber, was_absent=was_absent)
        subscriber.start_at(subscriber.done)
        if was_absent:
            state.absences.end(source.watchers, subscriber.joined_at)
        self._trim()
        subscriber.admission.was_absent = state.may_fall_behind and (
            state.absences.any_of(source.watchers) or state.awaits_redelivery
        )
        self.present[subscriber] = None
        return subscriber

    def fail(self, subscriber: Subscriber, error: BaseException) -> None:
        """Fail every event that the subscriber has not passed. From now on the subscriber is absent."""
        if subscriber.is_present:
            opened = subscriber.open_entry
            self._state.ledger.fail(subscriber, opened)
            since = subscriber.done
            if opened is not None and not opened.is_in_flight:
                # The open event fails too, even if the filter has rejected it.
                since = min(since, opened.seq)
            self._state.absences.begin(subscriber.source.watchers, since)
            self._remove(subscriber)
            if subscriber.interrupt(error):
                self._on_interrupted(subscriber)

    def leave(self, subscriber: Subscriber, *, comes_back: bool = False) -> None:
        """Remove a subscriber whose filter returned, or whose watchers were deleted.

        Events that the subscriber pulled are acked once their derived events are durable. The other events fail.

        Args:
            comes_back: True if the filter will be started again, so that its watchers may fall behind.
        """
        if subscriber.is_present:
            self._state.ledger.leave(subscriber, subscriber.open_entry)
            if comes_back:
                self._state.absences.begin(subscriber.source.watchers, subscriber.done)
            self._remove(subscriber)

    def end(self, error: BaseException) -> None:
        """End all subscribers with `error`; nothing is resolved."""
        for subscriber in list(self.present):
            subscriber.interrupt(error)

    def add_absent(self, watchers: Sequence[WatcherRef]) -> None:
        """Count later broadcasts as failed for a known member that cannot join yet."""
        self._state.ledger.add_absent()
        self._state.absences.begin(watchers, self._state.ledger.next_seq)

    def remove_absent(self, watchers: Sequence[WatcherRef]) -> None:
        """Stop counting broadcasts as failed for a member that leaves after it failed, or without having joined."""
        self._state.ledger.remove_absent()
        self._state.absences.end(watchers, self._state.ledger.next_seq)

    def replace_absent(self, before: Sequence[WatcherRef], after: Sequence[WatcherRef]) -> None:
        """Record that an absent member serves other watchers from now on: count broadcasts as failed for these."""
        self._state.absences.end(
            [one for one in before if one not in after], self._state.ledger.next_seq
        )
        self._state.absences.begin(
            [one for one in after if one not in before], self._state.ledger.next_seq
        )

    def forget(self, watchers: Sequence[WatcherRef]) -> None:
        """Forget the absences of these watchers, because the watchers were deleted."""
        self._state.absences.forget(watchers)

    def _trim(self) -> None:
        """Forget absences and departed subscribers that concern no outstanding event."""
        oldest = self._state.oldest_outstanding
        self._state.absences.trim(oldest)
        self._gone = [
            one for one in self._gone if one.failed_from is None or one.failed_from > oldest
        ]

    def _remove(self, subscriber: Subscriber) -> None:
        state = self._state
        del self.present[subscriber]
        self._gone.append(subscriber)
        subscriber.may_read = False
        state.readers.pop(subscriber, None)
        state.selection.remove(subscriber)
        if subscriber.oldest_pending is not None:
            self.departed[subscriber] = None
        state.progress.signal()

    def _forget(self, departed: Subscriber) -> None:
        self.departed.pop(departed, None)
