"""A service when Pub/Sub's subscriptions go away or its acks are refused: its errors, and its data."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import orjson
import pytest

from tests.acceptance.broker_scene import BrokerScene, lent
from tests.services.brokers.pubsub_admin import PROJECT, PubSubAdmin
from tests.services.brokers.pubsub_double import PERMANENT, PubSubDouble, open_pubsub_double
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

if TYPE_CHECKING:
    from tests.services.brokers.pubsub import PubSubServer

DAGS = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.pubsub import PubSubEventTrigger


def watched(name, subscription, match=None):
    trigger = PubSubEventTrigger(subscription, match=match, extra=dict(n="n"))
    return Asset(name=name, uri=f"x-faults://{name}", watchers=[AssetWatcher(name, trigger)])


assets = [
    watched("everything", "watched"),
    watched("evens", "watched", dict(parity=0)),
    watched("neighbour", "other"),
]
"""
SETTINGS = {"enable_message_ordering": True, "enable_exactly_once_delivery": True}


class Scene(BrokerScene):
    """A service that reads two subscriptions.

    Two watchers read an ordered exactly-once subscription. A third watcher reads another subscription, and must run
    even while the first two fail.
    """

    def __init__(self, server: PubSubAdmin, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.admin = server
        server.create("watched", **SETTINGS)
        server.create("other")
        self.database = folder / "triggerer.db"
        connection = (
            f'[connections.pubsub]\nproject = "{PROJECT}"\nemulator_host = "127.0.0.1:{proxy.port}"\n'
            "ack_deadline_s = 3\nack_timeout_s = 6\n"
        )
        super().__init__(proxy, folder, seed, dags=DAGS, connection=connection)

    @property
    def server(self) -> PubSubDouble:
        """The server as a `PubSubDouble`, which shows its leases and its entries."""
        assert isinstance(self.admin, PubSubDouble)
        return self.admin

    def send(self, key: int, numbers: Sequence[int]) -> None:
        bodies = [orjson.dumps({"n": n, "parity": n % 2}) for n in numbers]
        self.admin.publish("watched", bodies, key=f"k{key}")
        self.admin.publish("other", bodies)

    @contextmanager
    def store_held(self) -> Iterator[None]:
        """Lock the database against other writers until the end of the block."""
        with closing(sqlite3.connect(self.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def watchers(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.instance.cli("watchers", "list", "--json"))
        return {one["name"]: one for one in found}

    def until_failing(self, *says: str) -> None:
        """Wait until the first two watchers fail with an error that has these texts, while the third watcher runs."""

        def is_so() -> bool:
            found = self.watchers()
            return found["neighbour"]["state"] == "running" and all(
                found[name]["state"] == "failing"
                and all(one in found[name]["error"] for one in says)
                for name in ("everything", "evens")
            )

        self.until(is_so, f"they are failing with {says!r}", within_s=60)

    def until_running(self) -> None:
        self.until(
            lambda: all(one["state"] == "running" for one in self.watchers().values()),
            "all are running",
        )

    def until_there(self, numbers: Sequence[int]) -> None:
        expected = self.expected(numbers)
        self.until(lambda: self.numbers() == expected, f"events of {len(numbers)} messages")

    def expected(self, numbers: Sequence[int]) -> dict[str, Counter[int]]:
        return {
            "everything": Counter(numbers),
            "evens": Counter(n for n in numbers if n % 2 == 0),
            "neighbour": Counter(range(self.sent)),
        }

    def until_acked(self) -> None:
        self.until(
            lambda: all(one.is_acked for one in self.server.entries("watched")), "all are acked"
        )


@pytest.fixture
def scene(tmp_path: Path, seed: int) -> Iterator[Scene]:
    with open_pubsub_double() as server, open_tcp_proxy(server.port) as proxy:
        yield from lent(Scene(server, proxy, tmp_path, seed))


@pytest.mark.long
def test_a_subscription_deleted_while_events_wait_for_the_store_is_said_and_goes_on_once_it_is_made_again(
    scene: Scene,
) -> None:
    """The subscription is deleted while the events of 20 messages wait for the database.

    The broker cannot deliver these messages again, so their events must be stored.
    """
    scene.publish(20)
    scene.instance.start()
    scene.until_there(range(20))
    scene.until_acked()

    with scene.store_held():
        scene.publish(20)
        scene.until(
            lambda: len(scene.server.leased("watched")) == 20, "they are received, and wait"
        )
        scene.server.delete("watched")
        scene.until(
            lambda: "NOT_FOUND" in scene.instance.tail(200), "the stream has ended", within_s=30
        )
    scene.until_failing("NOT_FOUND: Resource not found (resource=projects/")
    scene.until_there(range(40))

    scene.server.create("watched", **SETTINGS)
    scene.publish(20)
    scene.until_there(range(60))
    scene.until_running()
    scene.until_acked()
    scene.until_all_ran()
    assert scene.numbers() == scene.expected(range(60))
    scene.end()


@pytest.fixture
def on_pstest(pubsub_server: PubSubServer, tmp_path: Path, seed: int) -> Iterator[Scene]:
    with open_tcp_proxy(pubsub_server.port) as proxy:
        yield from lent(Scene(pubsub_server, proxy, tmp_path, seed))
        for name in ("watched", "other"):
            pubsub_server.delete(name)


@pytest.mark.soak
def test_a_subscription_of_pstest_that_is_deleted_is_said_and_goes_on_once_it_is_made_again(
    on_pstest: Scene,
) -> None:
    """pstest reports a deleted subscription only when a stream is opened. So the test cuts the open streams."""
    scene = on_pstest
    scene.instance.start()
    for start in (0, 20):
        scene.publish(20)
        scene.until_there(range(start + 20))
        scene.until_running()
        scene.admin.delete("watched")
        scene.proxy.refuse()
        scene.proxy.heal()
        scene.until_failing("NOT_FOUND: subscription projects/tests/subscriptions/watched")
        scene.admin.create("watched", **SETTINGS)
    scene.publish(20)
    scene.until_there(range(60))
    scene.until_running()
    scene.until_all_ran()
    assert scene.numbers() == scene.expected(range(60))
    scene.end()


@pytest.mark.long
@pytest.mark.parametrize("are_taken", [pytest.param(True, marks=pytest.mark.soak), False])
def test_a_stream_that_is_cut_in_the_middle_of_acks_loses_and_repeats_nothing(
    scene: Scene, are_taken: bool
) -> None:
    """With `are_taken`, the server accepts the acks, and only its answer is lost. Otherwise it refuses the acks."""
    scene.instance.start()
    for start in range(0, 60, 20):
        acks = scene.server.counts["Acknowledge"]
        with scene.server.stalled("Acknowledge"):
            scene.publish(20)
            scene.until_there(range(start + 20))
            scene.until(lambda: scene.server.counts["Acknowledge"] > acks, "acks are under way")  # noqa: B023
            if not are_taken:
                scene.server.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE, times=4)
                scene.server.break_streams()
            scene.proxy.refuse()
        scene.proxy.heal()
        scene.until_acked()
    scene.until_running()
    scene.until_all_ran()
    assert scene.numbers() == scene.expected(range(60))
    scene.end()


@pytest.mark.soak
def test_acks_that_are_refused_for_good_are_said_and_repeat_no_event(scene: Scene) -> None:
    """The server refuses all acks of the subscription, so it delivers the messages again."""
    scene.instance.start()
    scene.publish(20)
    scene.until_there(range(20))
    scene.until_acked()

    scene.server.fail_ids(lambda method, _: PERMANENT if method == "Acknowledge" else None)
    scene.publish(20)
    scene.until_there(range(40))
    scene.until_failing("none was accepted within 6 s: PERMANENT_FAILURE_INVALID_ACK_ID")
    assert min(one.attempts for one in scene.server.entries("watched")[20:]) > 1

    scene.server.fail_ids(lambda _, __: None)
    scene.until_acked()
    scene.publish(20)
    scene.until_there(range(60))
    scene.until_running()
    scene.until_acked()
    scene.until_all_ran()
    assert scene.numbers() == scene.expected(range(60))
    scene.end()
