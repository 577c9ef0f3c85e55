"""Commits of many lanes side by side, on a coordinator that answers as the test says."""

import anyio
import pytest
from aiokafka import TopicPartition
from aiokafka import errors as sdk

from producers.kafka.positions.commits import Commits
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.cluster import Membership
from triggerer.errors import BrokerRefused, BrokerUnavailable

ME = Membership(3, "me")


class Coordinator:
    """Stands in for `Cluster`. Each request waits for its answer."""

    def __init__(self) -> None:
        self.requests: list[tuple[Membership, dict[int, int]]] = []
        self.answers: list[dict[int, type[Exception]] | Exception] = []
        self.rejoins = 0
        self.gate = anyio.Event()
        self.gate.set()

    async def commit(self, membership, positions):  # type: ignore[no-untyped-def]
        self.requests.append(
            (
                membership,
                {place.partition: position.offset for place, position in positions.items()},
            )
        )
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return {TopicPartition("t", number): error for number, error in answer.items()}

    def request_rejoin(self, _: Membership) -> None:
        self.rejoins += 1


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def commits(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Commits:
    monkeypatch.setattr("producers.kafka.positions.commits._FIRST_RETRY_S", 0.001)
    return Commits(coordinator, timeout_s=0.2)  # type: ignore[arg-type]


async def commit(
    commits: Commits, partition: int, offset: int, membership: Membership = ME
) -> bool:
    return await commits.commit(
        TopicPartition("t", partition), membership, CommittedPosition(offset)
    )


async def test_what_comes_while_a_request_is_on_its_way_goes_together_with_the_next(
    commits: Commits, coordinator: Coordinator
) -> None:
    coordinator.gate = anyio.Event()
    async with anyio.create_task_group() as tg:
        for partition in range(8):
            tg.start_soon(commit, commits, partition, 10 + partition)
        await anyio.wait_all_tasks_blocked()
        assert len(coordinator.requests) == 1
        coordinator.gate.set()
    sent = [number for _, places in coordinator.requests for number in places]
    assert sorted(sent) == list(range(8))
    assert len(coordinator.requests) <= 2


@pytest.mark.rule("a commit after the partition was lost is taken for a success")
async def test_a_commit_after_the_partition_was_lost_is_not_taken_for_a_success(
    commits: Commits, coordinator: Coordinator
) -> None:
    coordinator.answers = [{0: sdk.IllegalGenerationError}]
    assert await commit(commits, 0, 5) is False
    assert coordinator.rejoins == 1
    assert await commit(commits, 0, 5) is True


async def test_an_answer_that_may_change_is_asked_for_again(
    commits: Commits, coordinator: Coordinator
) -> None:
    coordinator.answers = [
        {0: sdk.NotCoordinatorForGroupError},
        BrokerUnavailable("connection reset"),
        {},
    ]
    assert await commit(commits, 0, 5) is True
    assert len(coordinator.requests) == 3


async def test_no_success_within_the_time_is_unavailable_with_the_last_reason(
    commits: Commits, coordinator: Coordinator
) -> None:
    coordinator.answers = [{0: sdk.GroupLoadInProgressError}] * 10_000
    with pytest.raises(BrokerUnavailable, match="GroupLoadInProgressError"):
        await commit(commits, 0, 5)


async def test_a_refusal_is_an_error_of_the_one_that_was_refused_alone(
    commits: Commits, coordinator: Coordinator
) -> None:
    coordinator.answers = [{0: sdk.TopicAuthorizationFailedError}]
    results: list[bool] = []

    async def refused() -> None:
        with pytest.raises(BrokerRefused, match="TopicAuthorizationFailedError"):
            await commit(commits, 0, 5)

    async def taken() -> None:
        results.append(await commit(commits, 1, 5))

    async with anyio.create_task_group() as tg:
        tg.start_soon(refused)
        tg.start_soon(taken)
    assert results == [True]


async def test_a_cancelled_commit_takes_nobody_elses_with_it(
    commits: Commits, coordinator: Coordinator
) -> None:
    coordinator.gate = anyio.Event()
    results: list[bool] = []

    async def other() -> None:
        results.append(await commit(commits, 1, 7))

    async with anyio.create_task_group() as tg:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(commit, commits, 0, 5)
                await anyio.wait_all_tasks_blocked()
                tg.start_soon(other)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        coordinator.gate.set()
    assert results == [True]
    assert coordinator.requests[-1] == (ME, {1: 7})


async def test_an_abandoned_position_replaces_no_later_position_of_its_lane(
    commits: Commits, coordinator: Coordinator
) -> None:
    coordinator.gate = anyio.Event()
    async with anyio.create_task_group() as tg:
        with anyio.CancelScope() as sender:
            async with anyio.create_task_group() as first:
                first.start_soon(commit, commits, 1, 7)
                with anyio.CancelScope() as abandoned:
                    async with anyio.create_task_group() as second:
                        second.start_soon(commit, commits, 0, 5)
                        await anyio.wait_all_tasks_blocked()
                        assert coordinator.requests == [(ME, {1: 7, 0: 5})]
                        abandoned.cancel()
                tg.start_soon(commit, commits, 0, 9)
                await anyio.wait_all_tasks_blocked()
                sender.cancel()
        coordinator.gate.set()
    assert coordinator.requests[-1] == (ME, {0: 9})


async def test_each_membership_has_its_own_requests(
    commits: Commits, coordinator: Coordinator
) -> None:
    later = Membership(4, "me")
    async with anyio.create_task_group() as tg:
        tg.start_soon(commit, commits, 0, 5, ME)
        tg.start_soon(commit, commits, 1, 6, later)
    assert sorted(coordinator.requests, key=lambda request: request[0]) == [
        (ME, {0: 5}),
        (later, {1: 6}),
    ]
