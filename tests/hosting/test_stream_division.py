"""Every stream that fits finds its instance, and then no stream moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.events import Fence
from triggerer.hosting.stream_division import StreamDivision, divide
from triggerer.store.watchers.hosting import StreamLoad


class Cluster:
    """Instances that claim and release streams in turn, and the owner of each stream (None if the stream is free)."""

    def __init__(self, sizes: list[int], instances: int, capacity: int) -> None:
        self.sizes = {f"s{number:03}": size for number, size in enumerate(sizes)}
        self.owner: dict[str, str | None] = dict.fromkeys(self.sizes)
        self.instances = [f"i{number}" for number in range(instances)]
        self.capacity = capacity

    def decide(self, me: str) -> StreamDivision:
        return divide(
            [StreamLoad(digest, size, self.owner[digest]) for digest, size in self.sizes.items()],
            me=me,
            instances=self.instances,
            owned=[Fence(digest, me, 1) for digest in self.of(me)],
            capacity=self.capacity,
        )

    def of(self, owner: str | None) -> list[str]:
        return [digest for digest, other in self.owner.items() if other == owner]

    def load(self, owner: str | None) -> int:
        return sum(self.sizes[digest] for digest in self.of(owner))

    def heartbeat(self, me: str) -> dict[str, int]:
        """Claim and release streams as a host does. Return the free streams that fit nowhere, with their sizes."""
        division = self.decide(me)
        room, claimed = division.room, list[str]()
        for digests, limit in ((division.free, division.claim), (division.beyond, len(self.sizes))):
            count = 0
            for digest in sorted(digests):
                size = self.sizes[digest]
                if count < limit and size <= room and self.owner[digest] is None:
                    self.owner[digest] = me
                    room -= size
                    count += 1
                    claimed.append(digest)
        for fence in division.release:
            self.owner[fence.stream_digest] = None
        return division.waiting(claimed)

    def settle(self) -> None:
        """Let the instances decide until no stream moves. Fail if the streams do not come to rest."""
        for _ in range(3 + 2 * len(self.sizes)):
            before = dict(self.owner)
            for instance in self.instances:
                self.heartbeat(instance)
            if self.owner == before:
                return
        raise AssertionError(f"still moving: {self.owner}")


@given(st.integers(0, 50), st.integers(1, 8))
def test_dividing_ends_with_every_stream_owned_and_nobody_above_its_share(
    streams: int, instances: int
) -> None:
    cluster = Cluster([1] * streams, instances, capacity=50)
    # One instance owns all streams, and the others join.
    cluster.owner = dict.fromkeys(cluster.sizes, "i0")
    cluster.settle()
    assert cluster.of(None) == []
    share = -(-streams // instances)
    assert all(len(cluster.of(instance)) <= share for instance in cluster.instances)


@given(st.lists(st.integers(0, 12), max_size=20), st.integers(1, 5), st.integers(1, 20), st.data())
def test_dividing_ends_with_nobody_above_its_capacity_and_nothing_left_that_fits(
    sizes: list[int], instances: int, capacity: int, data: st.DataObject
) -> None:
    cluster = Cluster(sizes, instances, capacity)
    # Begin with any owners, as after a change of the instances, the sizes or the capacity.
    for digest in cluster.owner:
        cluster.owner[digest] = data.draw(st.sampled_from([None, *cluster.instances]))
    cluster.settle()
    loads = [cluster.load(instance) for instance in cluster.instances]
    assert max(loads) <= capacity
    left = {digest: cluster.sizes[digest] for digest in cluster.of(None)}
    assert all(size > capacity - min(loads) for size in left.values())
    # All instances report that these streams wait.
    assert all(cluster.heartbeat(instance) == left for instance in cluster.instances)


def test_a_stream_that_nobody_else_has_room_for_is_kept_beyond_the_share() -> None:
    cluster = Cluster([10, 1, 1, 1], instances=2, capacity=10)
    cluster.owner["s000"] = "i1"
    cluster.settle()
    # A fair share is two of the four streams. But i1 is full with its one stream, so i0 has the three others.
    assert cluster.of("i1") == ["s000"]
    assert cluster.of("i0") == ["s001", "s002", "s003"]
