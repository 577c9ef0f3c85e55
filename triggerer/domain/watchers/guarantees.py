"""Computes the delivery guarantee of a watcher from facts about the source that its trigger reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import total_ordering


@total_ordering
class Guarantee(Enum):
    """How often the asset events of one message are created. The strongest guarantee is last."""

    AT_MOST_ONCE = "at_most_once"
    """Once or never: a failure loses the messages in flight."""
    AT_LEAST_ONCE = "at_least_once"
    """Once or several times: after a failure the messages in flight are delivered again."""
    EFFECTIVELY_ONCE = "effectively_once"
    """Once: a repeated message is recognised by its key."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Guarantee):
            return NotImplemented
        order = list(Guarantee)
        return order.index(self) < order.index(other)

    def __str__(self) -> str:
        return self.value.replace("_", " ")


DECLARABLE = tuple(one.value for one in Guarantee if one is not Guarantee.AT_MOST_ONCE)
"""The values of `AssetWatcher(guarantee=...)`. The weakest guarantee is missing, because every watcher fulfils it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a source that an operator should know: a sentence without its full stop.

    Attributes:
        most: The strongest guarantee that this fact allows. None: the fact does not limit the guarantee.
        hint: A change that the operator can make, such as "keep messages longer".
    """

    text: str
    most: Guarantee | None = None
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFacts:
    """The facts that a trigger knows about its source, settings and producer. The trigger leaves out unknown facts.

    Attributes:
        is_acknowledged: True if the source repeats a message until the message's events are durable. For this, the
            message is acknowledged only afterwards, or its position is stored in the transaction of the events.
        because: The reason for `is_acknowledged`, for people: a sentence without its full stop.
        key: The parts of the idempotency key, for people: "topic, partition and offset". None: no key.
        key_changes: Why a repeated message may have another key. None: a repeated message has the same key.
        key_collides: Why two different messages may share a key, so that the second is lost as a repeat. None: each
            message has its own key.
        retention: How long the source keeps an unacknowledged message. None: for ever, or unknown.
        redelivers_after: How long the source waits for an acknowledgement before it delivers a message again: a lock, a
            visibility timeout, an ack deadline. None: the source does not redeliver, or unknown.
        is_renewed: True if the producer extends `redelivers_after` while a message is in flight.
        renewed_for: The longest time for which the producer extends `redelivers_after`. None: as long as necessary.
        drops_after: The source drops a message after this number of failed deliveries. None: never.
        has_dead_letters: True if the source has a place for the messages that it drops. None: it drops none, or
            unknown.
        dead_letter_setting: The key of the trigger's connection that names a dead-letter target. If the target is
            missing, the warning shows this key. None: no such key.
        findings: Further facts. If a finding has a value of `most`, the guarantee is at most this value.
        source: The name of a source that divides its messages among its readers, as a queue does. `triggerer check`
            warns if two streams read one such source. So one source must have one name, even if the triggers' arguments
            write it in different ways. A stream of several sources has several names. None: unknown, or not needed
            because equal sources always have equal stream keys.
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
class PromisedGuarantee:
    """The guarantee of a watcher, the reason for it, the warnings, and the sources that the watcher reads."""

    guarantee: Guarantee
    reason: str
    warnings: tuple[Finding, ...] = ()
    sources: tuple[str, ...] = ()

    def is_below(self, wanted: Guarantee | None) -> bool:
        return wanted is not None and self.guarantee < wanted

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.reason}"


def guarantee_of(
    facts: DeliveryFacts, *, ack_timeout: timedelta, keys_kept_for: timedelta | None = None
) -> PromisedGuarantee:
    """Combine the facts into a guarantee.

    Args:
        ack_timeout: The time that a watcher has for one message (`shared_stream_ack_timeout`).
        keys_kept_for: How long the store recognises a key. None: for ever.
    """
    limits = [one for one in _limits(facts, keys_kept_for) if one.most is not None]
    warnings = tuple(_warnings(facts, ack_timeout))
    sources = (facts.source,) if isinstance(facts.source, str) else facts.source or ()
    if not limits:
        reason = f"{facts.because}; a repeated message is recognised by {facts.key}"
        return PromisedGuarantee(Guarantee.EFFECTIVELY_ONCE, reason, warnings, sources)
    # The first of the strictest limits gives the reason.
    strictest = min(limits, key=_most)
    reason = str(strictest)
    if strictest.most is not Guarantee.AT_MOST_ONCE:
        reason = f"{facts.because}; {reason}"
    return PromisedGuarantee(_most(strictest), reason, warnings, sources)


def _most(finding: Finding) -> Guarantee:
    return finding.most or Guarantee.EFFECTIVELY_ONCE


def _limits(facts: DeliveryFacts, keys_kept_for: timedelta | None) -> Iterator[Finding]:
    if not facts.is_acknowledged:
        yield Finding(facts.because, Guarantee.AT_MOST_ONCE)
    if facts.key is None:
        yield Finding("a repeated message is not recognised", Guarantee.AT_LEAST_ONCE)
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
                f"keys are kept for {keys_kept_for}, and the source keeps messages {kept}: a later repeat is not"
                " recognised",
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
            f"the source keeps a message for {retention}, and a watcher has {ack_timeout} for a message: a message that"
            f" fails after {retention} is gone",
            hint="keep messages longer, or lower shared_stream_ack_timeout",
        )
    if lock is not None and lock < ack_timeout and not facts.is_renewed:
        yield Finding(
            f"the source delivers a message again after {lock} without an acknowledgement, and nobody extends this"
            f" time: a watcher has {ack_timeout} for a message, so a slow message is delivered again while it is in"
            " flight",
            hint="let the source wait longer, or lower shared_stream_ack_timeout",
        )
    if facts.renewed_for is not None and facts.renewed_for < ack_timeout:
        yield Finding(
            f"the source is asked to wait for {facts.renewed_for} at most, and a watcher has {ack_timeout} for a"
            " message: a slow message is delivered again while it is in flight",
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
            hint=_dead_letter_hint(facts.dead_letter_setting),
        )
    yield from (finding for finding in facts.findings if finding.most is None)


def _dead_letter_hint(setting: str | None) -> str:
    hint = "give the source a place for dead letters"
    return hint if setting is None else f"set {setting} in its connection, or {hint}"
