"""What a session says in each fetch, and what it takes of an answer. No broker."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.kafka.fetch_request import SessionFetch, WantedPartition, WantedTopics
from producers.kafka.fetch_session import FetchSession


@dataclass
class Answer:
    session_id: int = 9
    error_code: int = 0


def at(**offsets: int) -> WantedTopics:
    """`p3=7`: partition 3 from offset 7."""
    return {
        b"topic": [WantedPartition(int(p[1:]), offset, 100, None) for p, offset in offsets.items()]
    }


def said(fetch: SessionFetch) -> tuple[int, int, list[int], list[int]]:
    topics = [one.partition for partitions in fetch.topics.values() for one in partitions]
    return (
        fetch.session_id,
        fetch.epoch,
        sorted(topics),
        sorted(one for numbers in fetch.forgotten.values() for one in numbers),
    )


def opened() -> FetchSession:
    session = FetchSession()
    session.note(session.next(at(p0=1, p1=1)), Answer())
    return session


def test_the_first_names_all_and_the_others_what_has_changed() -> None:
    session = FetchSession()
    first = session.next(at(p0=1, p1=1))
    assert said(first) == (0, 0, [0, 1], [])
    session.note(first, Answer())
    for epoch, wanted, named, forgotten in (
        (1, at(p0=1, p1=1), [], []),
        (2, at(p0=1, p1=2), [1], []),
        (3, at(p1=2, p2=0), [2], [0]),
        (4, at(p0=1, p1=2, p2=0), [0], []),
    ):
        fetch = session.next(wanted)
        assert said(fetch) == (9, epoch, named, forgotten)
        session.note(fetch, Answer())


def test_one_partition_alone_needs_no_session() -> None:
    session = FetchSession()
    for offset in (1, 2):
        fetch = session.next(at(p0=offset))
        assert said(fetch) == (0, -1, [0], [])
        session.note(fetch, Answer(session_id=0))
    assert said(session.next(at(p0=2, p1=0))) == (0, 0, [0, 1], [])


def test_a_session_goes_on_where_one_partition_is_left() -> None:
    session = opened()
    assert said(session.next(at(p0=1))) == (9, 1, [], [1])


@pytest.mark.parametrize(
    ("answer", "session_id"),
    [(Answer(error_code=70), 0), (Answer(error_code=71), 9), (Answer(session_id=0), 0)],
    ids=["not found", "another epoch", "closed by the broker"],
)
def test_all_are_named_again_where_the_broker_has_no_such_session(
    answer: Answer, session_id: int
) -> None:
    session = opened()
    session.note(session.next(at(p0=2, p1=1)), answer)
    assert said(session.next(at(p0=2, p1=1))) == (session_id, 0, [0, 1], [])


def test_all_are_named_again_after_an_answer_that_did_not_come() -> None:
    session = opened()
    session.next(at(p0=2, p1=1))
    session.reset()
    assert said(session.next(at(p0=2, p1=1))) == (9, 0, [0, 1], [])


def test_a_broker_with_too_many_sessions_is_asked_each_time() -> None:
    session = FetchSession()
    for _ in range(2):
        fetch = session.next(at(p0=1, p1=1))
        assert said(fetch) == (0, 0, [0, 1], [])
        session.note(fetch, Answer(session_id=0))


def test_the_epoch_after_the_last_is_the_first_of_a_session_that_goes_on() -> None:
    session = opened()
    session._epoch = 2**31 - 1
    fetch = session.next(at(p0=1, p1=1))
    assert fetch.epoch == 2**31 - 1
    session.note(fetch, Answer())
    assert said(session.next(at(p0=1, p1=1))) == (9, 1, [], [])


@dataclass
class Broker:
    """Remembers a session as Kafka does."""

    session_id: int = 0
    epoch: int = 0
    known: dict[int, int] | None = None

    def answer(self, fetch: SessionFetch) -> Answer:
        """Take what a fetch says."""
        if fetch.epoch > 0 and (self.known is None or fetch.session_id != self.session_id):
            return Answer(0, 70)
        if fetch.epoch > 0 and fetch.epoch != self.epoch:
            return Answer(0, 71)
        if fetch.epoch <= 0:
            self.session_id, self.known = self.session_id + 1, {}
            self.epoch = 0
        assert self.known is not None
        for partitions in fetch.topics.values():
            self.known |= {one.partition: one.offset for one in partitions}
        for numbers in fetch.forgotten.values():
            for number in numbers:
                del self.known[number]
        self.epoch += 1
        return Answer(0 if fetch.epoch < 0 else self.session_id)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 4), st.integers(0, 3), min_size=1),
            st.sampled_from(["answered", "answered", "lost", "unheard", "evicted"]),
        )
    )
)
def test_a_broker_that_answers_fetches_what_is_wanted(
    fetches: list[tuple[dict[int, int], str]],
) -> None:
    """However answers and requests are lost: a fetch that is taken is of these partitions from these offsets."""
    broker, session = Broker(), FetchSession()
    for wanted, what in fetches:
        if what == "evicted":
            broker.known = None
        fetch = session.next(
            {b"topic": [WantedPartition(one, at, 100, None) for one, at in wanted.items()]}
        )
        if what == "unheard":
            session.reset()
            continue
        answer = broker.answer(fetch)
        if not answer.error_code:
            assert broker.known == wanted
        if what == "lost":
            session.reset()
        else:
            session.note(fetch, answer)
            if answer.error_code:
                again = session.next(
                    {b"topic": [WantedPartition(one, at, 100, None) for one, at in wanted.items()]}
                )
                answer = broker.answer(again)
                assert (answer.error_code, broker.known) == (0, wanted)
                session.note(again, answer)
