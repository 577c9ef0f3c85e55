"""What a watcher promises from the message to the asset event, computed from what its trigger says of its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import total_ordering


@total_ordering
class Guarantee(Enum):
    """How many asset events come of a message, in ascending order of what that is worth."""

    AT_MOST_ONCE = "at_most_once"
    """One, or none: what is in flight when something fails is lost."""
    AT_LEAST_ONCE = "at_least_once"
    """One, or several: what is in flight when something fails comes again."""
    EFFECTIVELY_ONCE = "effectively_once"
    """One: what comes again is recognised by its key."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Guarantee):
            return NotImplemented
        order = list(Guarantee)
        return order.index(self) < order.index(other)

    def __str__(self) -> str:
        return self.value.replace("_", " ")


DECLARABLE = tuple(one.value for one in Guarantee if one is not Guarantee.AT_MOST_ONCE)
"""What an `AssetWatcher` may ask for: the least is promised by all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an operator should know of a source: a sentence without its full stop.

    Attributes:
        most: No more than this is promised because of it. None: a warning, the promise stands.
        hint: What to change.
    """

    text: str
    most: Guarantee | None = None
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFacts:
    """What a trigger knows of its source, its settings and its producer. What it does not know it leaves out.

    Attributes:
        is_acknowledged: Whether the source gives a message again until its events are durable: it is told of it only
            after that, or the place in it is stored in the transaction of the events.
        because: Why, or why not; for people, as in a `Finding`.
        key: What the idempotency key consists of, for people: "topic, partition and offset". None: there is none.
        key_changes: Why one message may come again under another key; None: it cannot.
        key_collides: Why two different messages may have one key, so that the second is taken for a repeat of the first
            and lost; None: it cannot be.
        retention: How long the source keeps a message that is not acknowledged. None: for ever, or nobody has asked.
        redelivers_after: How long the source waits for an answer before it gives a message to somebody again: a lock,
            a visibility timeout, an ack deadline. None: it does not, or nobody has asked.
        is_renewed: Whether the producer extends that while a message is in flight.
        renewed_for: How long at most. None: as long as it takes.
        drops_after: After how many deliveries the source gives a message up that fails every time. None: never.
        has_dead_letters: Whether it keeps what it gives up. None: it gives up nothing, or nobody has asked.
        dead_letter_setting: The key of the trigger's connection that names a place for dead letters, for the warning
            that there is none. None: no key does.
        findings: What else is to be said, and may lower the promise.
        source: What names a source whose messages are divided among its readers, however the arguments name it: two
            streams of one are warned of. Several names where a stream reads several: topics, by one consumer group.
            None: equal sources have equal stream keys, or nobody has asked.
    """

    is_acknowledged: bool
    because: str
    key: str | None = None
    key_changes: str | None = None
    key_collides: str | None = None
    retention: timedelta | None = None
    redelivers_after: timedelta | None = None
    is_renewed: bool = False
    renewed_for: timedelta | None = None
    drops_after: int | None = None
    has_dead_letters: bool | None = None
    dead_letter_setting: str | None = None
    findings: tuple[Finding, ...] = ()
    source: str | tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """What a watcher promises, why not more or why so much, what is to be warned of, and what is read."""

    guarantee: Guarantee
    reason: str
    warnings: tuple[Finding, ...] = ()
    sources: tuple[str, ...] = ()

    def is_below(self, wanted: Guarantee | None) -> bool:
        return wanted is not None and self.guarantee < wanted

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.reason}"


def promise(
    facts: DeliveryFacts, *, ack_timeout: timedelta, keys_kept_for: timedelta | None = None
) -> Promise:
    """Combine what is known into a promise.

    Args:
        ack_timeout: How long a watcher may take over a message (`shared_stream_ack_timeout`).
        keys_kept_for: How long the store recognises a key. None: for ever.
    """
    limits = [one for one in _limits(facts, keys_kept_for) if one.most is not None]
    warnings = tuple(_warnings(facts, ack_timeout))
    sources = (facts.source,) if isinstance(facts.source, str) else facts.source or ()
    if not limits:
        reason = f"{facts.because}; what comes again is recognised by {facts.key}"
        return Promise(Guarantee.EFFECTIVELY_ONCE, reason, warnings, sources)
    # The first of the strictest: the reason to name.
    strictest = min(limits, key=_most)
    reason = str(strictest)
    if strictest.most is not Guarantee.AT_MOST_ONCE:
        reason = f"{facts.because}; {reason}"
    return Promise(_most(strictest), reason, warnings, sources)


def _most(finding: Finding) -> Guarantee:
    return finding.most or Guarantee.EFFECTIVELY_ONCE


def _limits(facts: DeliveryFacts, keys_kept_for: timedelta | None) -> Iterator[Finding]:
    if not facts.is_acknowledged:
        yield Finding(facts.because, Guarantee.AT_MOST_ONCE)
    if facts.key is None:
        yield Finding("a message that comes again is not recognised", Guarantee.AT_LEAST_ONCE)
    else:
        if facts.key_collides is not None:
            yield Finding(facts.key_collides, Guarantee.AT_MOST_ONCE)
        if facts.key_changes is not None:
            yield Finding(facts.key_changes, Guarantee.AT_LEAST_ONCE)
        if keys_kept_for is not None and (
            facts.retention is None or facts.retention > keys_kept_for
        ):
            kept = "for ever" if facts.retention is None else f"for {facts.retention}"
            yield Finding(
                f"keys are kept for {keys_kept_for}, and the source keeps messages {kept}: what comes again later is"
                " not recognised",
                Guarantee.AT_LEAST_ONCE,
                "keep the events for longer than the source keeps messages",
            )
    yield from facts.findings


def _warnings(facts: DeliveryFacts, ack_timeout: timedelta) -> Iterator[Finding]:
    retention, lock = facts.retention, facts.redelivers_after
    if not facts.is_acknowledged:
        retention = lock = None
    if retention is not None and retention < ack_timeout:
        yield Finding(
            f"the source keeps a message for {retention}, and a watcher may take {ack_timeout} over one: if it fails"
            " after that, the message is gone",
            hint="keep messages longer, or lower shared_stream_ack_timeout",
        )
    if lock is not None and lock < ack_timeout and not facts.is_renewed:
        yield Finding(
            f"the source delivers again what is not acknowledged within {lock}, nobody extends that, and a watcher may"
            f" take {ack_timeout} over a message: it is delivered again while it is in flight",
            hint="make it longer, or lower shared_stream_ack_timeout",
        )
    if facts.renewed_for is not None and facts.renewed_for < ack_timeout:
        yield Finding(
            f"a message is held for {facts.renewed_for} at most, and a watcher may take {ack_timeout} over it: it is"
            " delivered again while it is in flight",
            hint="lower shared_stream_ack_timeout",
        )
    if facts.has_dead_letters is False:
        if facts.drops_after is not None:
            lost = f"a message that fails {facts.drops_after} times is dropped"
        elif retention is not None:
            lost = f"a message that fails every time is delivered again until it is dropped after {retention}"
        else:
            lost = "a message that fails every time is delivered again for ever"
        yield Finding(
            f"the source has no place for dead letters: {lost}",
            hint=_place_for_dead_letters(facts.dead_letter_setting),
        )
    yield from (finding for finding in facts.findings if finding.most is None)


def _place_for_dead_letters(setting: str | None) -> str:
    place = "give the source a place for dead letters"
    return place if setting is None else f"set {setting} in its connection, or {place}"
