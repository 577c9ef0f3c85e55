"""The memory of a URL's items, and how long it lasts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.http.errors import read_retry_after
from producers.http.fetching import Validators
from producers.http.memory import MOST_KNOWN, Delivery, Memory
from producers.http.reading import Found, Reader
from producers.http.settings import HttpSettings
from triggerer.domain.watchers.stream_states import MAX_STATE_BYTES
from triggerer.errors import BrokerRefused, ConfigurationError

NOW = datetime(2026, 11, 24, tzinfo=UTC)


def found(*names: str) -> list[Found]:
    return [Found(f"{name:>024}", name, name.encode()) for name in names]


def validators(etag: str) -> Validators:
    return Validators("http://x/", etag)


def take(memory: Memory, *names: str, etag: str = "e") -> list[Delivery]:
    return memory.take(found(*names), validators(etag), etag, NOW)


def items() -> Memory:
    return Memory.restore("s", None, is_document=False)


def document() -> Memory:
    return Memory.restore("s", None, is_document=True)


def names(deliveries: list[Delivery]) -> list[str]:
    return [one.found.key for one in deliveries]


def test_what_is_in_flight_is_not_delivered_twice_and_what_is_settled_never_again() -> None:
    memory = items()
    (a, b) = take(memory, "a", "b")
    assert take(memory, "a", "b") == []
    memory.settle(a)
    assert names(take(memory, "a", "b", "c")) == ["c"]
    memory.settle(b)
    assert take(memory, "a", "b", "c") == []


def test_validators_and_cursor_follow_once_all_before_them_is_settled() -> None:
    memory = items()
    (a, b) = take(memory, "a", "b", etag="1")
    (c,) = take(memory, "a", "b", "c", etag="2")
    memory.settle(c)
    memory.settle(b)
    assert memory.cursor is None
    memory.settle(a)
    assert (memory.cursor, memory.validators) == ("2", validators("2"))
    take(memory, "a", etag="3")
    assert memory.cursor == "3"


def test_a_successor_delivers_what_was_not_settled_under_the_same_keys() -> None:
    memory = items()
    deliveries = take(memory, "a", "b")
    memory.settle(deliveries[0])
    state = orjson.loads(orjson.dumps(memory.dump()))
    again = take(Memory.restore("s", state, is_document=False), "a", "b")
    assert [one.key for one in again] == [deliveries[1].key]


def test_a_document_is_known_by_its_version() -> None:
    memory = document()
    keys = []
    for content in ("a", "b", "a"):
        (delivery,) = take(memory, content)
        memory.settle(delivery)
        keys.append(delivery.key)
    assert len(set(keys)) == 3
    assert take(memory, "a") == []
    # Without a state, a new memory cannot know the versions. So even equal content gets another key.
    (fresh,) = take(document(), "a")
    assert fresh.key not in keys


def test_a_crash_before_the_state_gives_a_document_the_same_key_again() -> None:
    memory = document()
    state = memory.dump()
    (before,) = take(memory, "a")
    (after,) = take(Memory.restore("s", state, is_document=True), "a")
    assert before.key == after.key
    (other,) = take(Memory.restore("s", state, is_document=True), "b")
    assert other.key != before.key


def test_a_number_of_a_version_is_given_to_one_content_only_whoever_restarts() -> None:
    """A version's number is part of its idempotency key. If a number came again with the same content, the store would
    take the new version for the old one.
    """
    memory = document()
    (up,) = take(memory, "up")
    memory.settle(up)
    delivered = [up, *take(memory, "down"), *take(memory, "gone")]
    state = orjson.loads(orjson.dumps(memory.dump()))
    # The last delivered version may have no event yet, so it comes again with its key.
    (again,) = take(Memory.restore("s", state, is_document=True), "gone")
    assert again.key == delivered[-1].key
    # Any other content is a new version, and gets a new key, even if an earlier version had this content.
    for content in ("up", "down", "other"):
        successor = Memory.restore("s", state, is_document=True)
        # A successor sends no validators: the server could answer "not modified" for "up", which must be delivered.
        assert successor.validators is None
        (other,) = take(successor, content)
        assert other.key not in {one.key for one in delivered}
        assert take(successor, content) == []
        successor.settle(other)
        assert successor.dump()["delivered"] is None


def test_answers_without_news_cost_no_memory_while_an_item_fails() -> None:
    memory = items()
    (failing,) = take(memory, "a", etag="1")
    (other,) = take(memory, "a", "b", etag="2")
    for number in range(3, 100):
        take(memory, "a", "b", etag=str(number))
    assert len(memory._rounds) == 3
    memory.settle(other)
    assert memory.cursor is None
    memory.settle(failing)
    assert (memory.cursor, memory.validators) == ("99", validators("99"))


def test_an_older_version_that_is_settled_late_does_not_hide_the_newer_one() -> None:
    memory = document()
    (a,), (b,) = take(memory, "a"), take(memory, "b")
    memory.settle(b)
    memory.settle(a)
    successor = Memory.restore("s", memory.dump(), is_document=True)
    assert take(successor, "b") == []
    assert names(take(successor, "a")) == ["a"]


def test_the_oldest_keys_give_way_and_never_those_that_are_shown() -> None:
    memory = items()
    shown = [f"shown-{number}" for number in range(100)]
    for delivery in take(memory, *shown):
        memory.settle(delivery)
    for start in range(0, 2 * MOST_KNOWN, 5_000):
        new = [f"n{number}" for number in range(start, start + 5_000)]
        for delivery in take(memory, *shown, *new):
            memory.settle(delivery)
        assert len(memory.known) <= MOST_KNOWN
    assert take(memory, *shown) == []
    assert len(orjson.dumps(memory.dump())) < MAX_STATE_BYTES
    # An item that was forgotten comes again under its first key, so the store recognises it.
    (forgotten,) = take(memory, *shown, "n0")
    assert forgotten.key == "s/" + found("n0")[0].digest


def test_a_state_of_a_version_that_is_not_known_begins_anew() -> None:
    assert not Memory.restore("s", {"v": 99}, is_document=False).has_begun


@settings(max_examples=60)
@given(
    polls=st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdef"), unique=True),
            st.lists(st.integers(0, 5), max_size=4),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_every_item_that_stays_is_settled_once_however_often_it_restarts(
    polls: list[tuple[list[str], list[int], bool]],
) -> None:
    memory, open_ = items(), list[Delivery]()
    settled: list[str] = []
    shown: set[str] = set()
    for new, order, restarts in polls:
        shown |= set(new)
        open_ += take(memory, *sorted(shown))
        for place in order:
            if place < len(open_):
                delivery = open_.pop(place)
                memory.settle(delivery)
                settled.append(delivery.found.key)
        if restarts:
            memory, open_ = Memory.restore("s", memory.dump(), is_document=False), []
    for delivery in [*open_, *take(memory, *sorted(shown))]:
        memory.settle(delivery)
        settled.append(delivery.found.key)
    assert sorted(settled) == sorted(shown)


def test_equal_keys_in_one_answer_are_one_item_and_a_key_is_no_item() -> None:
    page = Reader("@value", "id", None).read(
        b'[{"id": 1, "n": 1}, {"id": 1, "n": 2}, {"n": 3}]', "it"
    )
    assert page.found[0].key == 1
    assert len(page.found) == 2
    with pytest.raises(BrokerRefused, match="no list"):
        Reader("@value", None, None).read(b"{}", "it")


def test_an_item_is_the_same_whatever_the_order_of_its_fields() -> None:
    read = Reader("@value", None, None).read
    (one,) = read(b'[{"a": 1, "b": 2}]', "it").found
    (other,) = read(b'[{"b": 2, "a": 1}]', "it").found
    assert one.digest == other.digest


def test_retry_after_is_a_number_or_an_instant_and_has_a_limit() -> None:
    assert read_retry_after("7") == 7
    assert read_retry_after("999999") == 3600
    later = read_retry_after(
        format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    )
    assert later is not None
    assert 50 < later <= 60
    assert read_retry_after("Mon, 01 Jan 2001 00:00:00 GMT") == 0
    assert read_retry_after("soon") is None
    assert read_retry_after("Wed, 21 Oct 99999999999999999999 07:28:00 GMT") is None
    assert read_retry_after(None) is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"base_url": "api.example.com"}, "must begin with http"),
        ({"token": "hush", "headers": {"authorization": "hush"}}, "give one"),
        ({"timeout": 3}, "did you mean 'timeout_s'"),
        ({"timeout_s": 0}, "must be above 0"),
        ({"headers": {"X-Key": 3}}, r"headers in \[connections.http\]"),
        (
            {"headers": {"X-Key": "hush\n"}},
            r"header 'X-Key' in .* cannot be sent .use printable ASCII",
        ),
        ({"headers": {"X Key": "hush"}}, "'X Key' in headers of .* is not a valid header name"),
        ({"token": "hüsh hush"}, "token in .* cannot be sent"),
        ({"token": "hush\r\nX: y"}, "token in .* cannot be sent"),
        ({"params": "appid=1"}, r"params in .* is \*\*\* .a table is needed: params = { name ="),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(written: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        HttpSettings.from_mapping("http", written)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("make", [items, document])
def test_what_will_be_remembered_is_told_ahead_and_changes_nothing(
    make: Callable[[], Memory],
) -> None:
    memory = make()
    first, *_ = earlier = take(memory, "a", etag="1")
    later = (
        take(memory, "b", "c", etag="2") if not memory.is_document else take(memory, "b", etag="2")
    )
    before = memory.dump()
    ahead = [memory.dump_after(earlier), memory.dump_after([*earlier, *later])]
    assert memory.dump() == before
    memory.settle(first)
    assert memory.dump() == ahead[0]
    for one in later:
        memory.settle(one)
    assert memory.dump() == ahead[1]
    assert memory.dump()["cursor"] == "2"
