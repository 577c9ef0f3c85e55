"""Guarantees, computed from the facts that triggers give about their sources."""

from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from triggerer.abc import AdvanceItem, BaseEventTrigger, SharedStreamProducer
from triggerer.domain.watchers.guarantees import (
    DeliveryFacts,
    Finding,
    Guarantee,
    PromisedGuarantee,
    guarantee_of,
)

MINUTE = timedelta(minutes=1)
LOG = DeliveryFacts(is_acknowledged=True, because="acknowledged last", key="the offset")


def promised(facts: DeliveryFacts, *, keys_kept_for: timedelta | None = None) -> PromisedGuarantee:
    return guarantee_of(facts, ack_timeout=5 * MINUTE, keys_kept_for=keys_kept_for)


def test_guarantees_are_ordered_by_what_they_are_worth() -> None:
    assert Guarantee.AT_MOST_ONCE < Guarantee.AT_LEAST_ONCE < Guarantee.EFFECTIVELY_ONCE
    assert Guarantee("effectively_once") >= Guarantee("at_least_once")


def test_acknowledged_and_recognised_is_effectively_once() -> None:
    found = promised(LOG)
    assert found.guarantee is Guarantee.EFFECTIVELY_ONCE
    assert found.reason == "acknowledged last; a repeated message is recognised by the offset"
    assert found.warnings == ()


def test_acknowledged_without_a_key_is_at_least_once() -> None:
    found = promised(replace(LOG, key=None))
    assert found.guarantee is Guarantee.AT_LEAST_ONCE
    assert found.reason == "acknowledged last; a repeated message is not recognised"


@pytest.mark.parametrize("key", [None, "the offset"])
def test_a_source_without_acknowledgement_is_at_most_once_with_any_key(key: str | None) -> None:
    found = promised(DeliveryFacts(is_acknowledged=False, because="fast", key=key))
    assert (found.guarantee, found.reason) == (Guarantee.AT_MOST_ONCE, "fast")


def test_a_key_that_may_change_recognises_nothing_and_one_that_collides_loses() -> None:
    assert promised(replace(LOG, key_changes="new ids")).guarantee is Guarantee.AT_LEAST_ONCE
    both = promised(replace(LOG, key_changes="new ids", key_collides="publishers choose it"))
    assert (both.guarantee, both.reason) == (Guarantee.AT_MOST_ONCE, "publishers choose it")


def test_a_key_has_to_be_kept_for_as_long_as_the_message() -> None:
    kept = {"keys_kept_for": timedelta(days=7)}
    assert promised(replace(LOG, retention=timedelta(days=8)), **kept).guarantee is (
        Guarantee.AT_LEAST_ONCE
    )
    assert promised(LOG, **kept).guarantee is Guarantee.AT_LEAST_ONCE
    assert promised(replace(LOG, retention=timedelta(days=7)), **kept).guarantee is (
        Guarantee.EFFECTIVELY_ONCE
    )


def test_a_finding_of_the_trigger_lowers_the_promise_or_is_a_warning() -> None:
    warned, lowered = Finding("odd", hint="mend it"), Finding("bad", Guarantee.AT_LEAST_ONCE)
    found = promised(replace(LOG, findings=(warned, lowered)))
    assert (found.guarantee, found.warnings) == (Guarantee.AT_LEAST_ONCE, (warned,))
    assert found.reason == "acknowledged last; bad"
    assert str(warned) == "odd (mend it)"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"retention": MINUTE}, "a message that fails after 0:01:00 is gone"),
        ({"redelivers_after": MINUTE}, "nobody extends this time"),
        ({"renewed_for": MINUTE, "is_renewed": True}, "wait for 0:01:00 at most"),
        ({"has_dead_letters": False, "drops_after": 5}, "fails 5 times is dropped"),
        ({"has_dead_letters": False, "retention": timedelta(days=4)}, "dropped after 4 days"),
        ({"has_dead_letters": False}, "again for ever"),
    ],
)
def test_weak_settings_are_warned_of_and_lower_nothing(changes: dict[str, Any], said: str) -> None:
    found = promised(replace(LOG, **changes))
    assert found.guarantee is Guarantee.EFFECTIVELY_ONCE
    assert [said in str(one) for one in found.warnings] == [True]


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        (None, "give the source a place for dead letters"),
        (
            "graveyard",
            "set graveyard in its connection, or give the source a place for dead letters",
        ),
    ],
)
def test_the_hint_about_dead_letters_names_the_plugins_own_setting(
    setting: str | None, hint: str
) -> None:
    facts = replace(LOG, has_dead_letters=False, dead_letter_setting=setting)
    (warning,) = promised(facts).warnings
    assert warning.hint == hint


def test_a_lock_that_is_renewed_or_long_enough_is_no_warning() -> None:
    renewed = replace(LOG, redelivers_after=MINUTE, is_renewed=True, has_dead_letters=True)
    assert promised(renewed).warnings == ()
    assert promised(replace(LOG, redelivers_after=5 * MINUTE)).warnings == ()


# Guarantees that follow from the methods that a trigger overrides.


class Standalone(BaseEventTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Standalone", {}


class Fast(Standalone):
    def shared_stream_key(self) -> Hashable:
        return "fast"


class Producer(SharedStreamProducer):
    closed = 0

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        raise AssertionError("nobody asked for it")
        yield

    async def advance(self, batch: Sequence[AdvanceItem]) -> None: ...

    async def aclose(self) -> None:
        type(self).closed += 1


class KeyedProducer(Producer):
    def get_idempotency_key(self, broker_payload: Any) -> str:
        return "key"


class Acknowledged(Fast):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Producer()


class Keyed(Fast):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return KeyedProducer()


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (Standalone(), Guarantee.AT_MOST_ONCE),
        (Fast(), Guarantee.AT_MOST_ONCE),
        (Acknowledged(), Guarantee.AT_LEAST_ONCE),
        (Keyed(), Guarantee.EFFECTIVELY_ONCE),
    ],
)
async def test_by_default_the_facts_follow_from_what_is_overridden(
    trigger: BaseEventTrigger, expected: Guarantee
) -> None:
    assert promised(await trigger.describe_delivery(ask=False)).guarantee is expected


async def test_a_producer_that_is_only_looked_at_is_closed() -> None:
    before = KeyedProducer.closed
    await Keyed().describe_delivery(ask=False)
    assert KeyedProducer.closed == before + 1
