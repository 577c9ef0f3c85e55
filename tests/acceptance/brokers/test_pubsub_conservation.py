"""Kills and broken connections lose no message of a Pub/Sub subscription, repeat no event, and keep each key's order.

The tests cut the connections to two servers:

- Google's pstest. It is never restarted, because it keeps everything in memory.
- Our `PubSubDouble`, which follows Pub/Sub's rules more closely. It also breaks streams.

`make test-all` runs the short tests, and `make soak` runs the long ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import orjson
import pytest

from tests.acceptance.broker_scene import FLAKY, BrokerScene, lent
from tests.acceptance.records import conservation
from tests.services.brokers.pubsub_admin import PROJECT, PubSubAdmin
from tests.services.brokers.pubsub_double import PubSubDouble, open_pubsub_double
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

if TYPE_CHECKING:
    from tests.services.brokers.pubsub import PubSubServer

_FLAKY = FLAKY.replace("BASE", "PubSubEventTrigger").replace(
    "FAILS", 'message.json()["n"] % 50 == 4'
)
DAGS = f"""
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.pubsub import PubSubEventTrigger
{_FLAKY}

def watched(name, subscription, match=None, cls=PubSubEventTrigger):
    trigger = cls(subscription, match=match, extra=dict(n="n", key="key"))
    return Asset(name=name, uri=f"x-soak://{{name}}", watchers=[AssetWatcher(name, trigger)])


assets = [
    watched("everything", "plain"),
    watched("evens", "plain", dict(parity=0), Flaky),
    watched("ordered", "ordered"),
    watched("thirds", "ordered", dict(third=0), Flaky),
]
"""


class Scene(BrokerScene):
    """A service on two subscriptions: a plain one, and an ordered one with exactly-once delivery."""

    def __init__(self, server: PubSubAdmin, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.server = server
        server.create("plain")
        server.create("ordered", enable_message_ordering=True, enable_exactly_once_delivery=True)
        connection = (
            f'[connections.pubsub]\nproject = "{PROJECT}"\n'
            f'emulator_host = "127.0.0.1:{proxy.port}"\nack_deadline_s = 3\n'
        )
        super().__init__(proxy, folder, seed, dags=DAGS, connection=connection)

    def send(self, key: int, numbers: Sequence[int]) -> None:
        bodies = [
            orjson.dumps({"n": n, "parity": n % 2, "third": n % 3, "key": key}) for n in numbers
        ]
        self.server.publish("plain", bodies)
        self.server.publish("ordered", bodies, key=f"k{key}")

    def break_streams(self) -> None:
        """Break all streams and refuse some acks, as Pub/Sub does when it moves streams to other servers."""
        if isinstance(self.server, PubSubDouble):
            self.server.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE, times=5)
            self.server.break_streams()

    def expected(self) -> dict[str, Counter[int]]:
        return {
            "everything": Counter(range(self.sent)),
            "evens": Counter(range(0, self.sent, 2)),
            "ordered": Counter(range(self.sent)),
            "thirds": Counter(range(0, self.sent, 3)),
        }

    def check_orders(self) -> None:
        """Check the order within each key, for both watchers of the ordered subscription."""
        for name in ("ordered", "thirds"):
            self.check_order(name, "key")


@pytest.fixture
def by_the_rules(tmp_path: Path, seed: int) -> Iterator[Scene]:
    with open_pubsub_double() as server, open_tcp_proxy(server.port) as proxy:
        yield from lent(Scene(server, proxy, tmp_path, seed))


@pytest.fixture
def on_pstest(pubsub_server: PubSubServer, tmp_path: Path, seed: int) -> Iterator[Scene]:
    with open_tcp_proxy(pubsub_server.port) as proxy:
        yield from lent(Scene(pubsub_server, proxy, tmp_path, seed))
        pubsub_server.delete("plain")
        pubsub_server.delete("ordered")


def _prove(scene: Scene, *, messages: int, kills: int, cuts: int, breaks: int) -> None:
    acts = [scene.kill] * kills + [scene.cut, scene.make_trouble] * cuts
    acts += [scene.break_streams] * breaks
    scene.go_through(acts, messages=messages)
    expected = scene.expected()
    scene.check_numbers(expected)
    if isinstance(scene.server, PubSubDouble):
        scene.check_orders()
    found = conservation(scene.records)
    assert found.taken == found.events == sum(map(len, expected.values()))
    scene.end()
    assert scene.numbers() == expected


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: under kills of whole processes")
@pytest.mark.timeout(500)
def test_a_service_that_is_killed_and_cut_off_loses_and_repeats_nothing(
    by_the_rules: Scene,
) -> None:
    _prove(by_the_rules, messages=1_000, kills=2, cuts=2, breaks=2)


@pytest.mark.rule("one watcher times out, and its siblings get the message again too")
def test_a_sick_watcher_costs_its_siblings_no_redelivery_and_nobody_a_delivery_count(
    by_the_rules: Scene,
) -> None:
    scene = by_the_rules
    scene.trouble.touch()
    scene.publish(200)
    scene.instance.start()
    expected = scene.expected()
    scene.until(
        lambda: (
            (found := scene.numbers()).get("everything") == expected["everything"]
            and found.get("ordered") == expected["ordered"]
        ),
        "the well ones have everything",
    )
    assert isinstance(scene.server, PubSubDouble)
    entries = [*scene.server.entries("plain"), *scene.server.entries("ordered")]
    scene.until(lambda: all(one.is_acked for one in entries), "the service was told of everything")
    assert sum(map(len, scene.numbers().values())) < sum(map(len, expected.values()))
    scene.trouble.unlink()
    scene.until(lambda: scene.numbers() == expected, "the sick ones have what they missed")
    scene.check_orders()
    assert {(one.attempts, one.failures) for one in entries} == {(1, 0)}
    assert scene.instance.stop() == 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_service_that_is_killed_ten_times_loses_and_repeats_nothing(by_the_rules: Scene) -> None:
    _prove(by_the_rules, messages=6_000, kills=10, cuts=8, breaks=10)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_service_on_pstest_that_is_killed_ten_times_loses_and_repeats_nothing(
    on_pstest: Scene,
) -> None:
    _prove(on_pstest, messages=4_000, kills=10, cuts=8, breaks=0)
