"""The service is killed and cut off from SQS: each message still makes one event, and groups stay in order.

`make test-all` runs the short tests, and `make soak` runs the long ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest

from tests.acceptance.broker_scene import FLAKY, BrokerScene, lent
from tests.services.availability import service
from tests.services.brokers.elasticmq import ElasticMqServer, open_elasticmq
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

_FLAKY = FLAKY.replace("BASE", "SqsEventTrigger").replace("FAILS", 'message.json()["n"] % 7 == 3')
DAGS = f"""
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.sqs import SqsEventTrigger
{_FLAKY}

def watched(name, queue, match=None, cls=SqsEventTrigger):
    trigger = cls(queue, match=match, extra=dict(n="n", group="group", times="@deliveries"))
    return Asset(name=name, uri=f"x-soak://{{name}}", watchers=[AssetWatcher(name, trigger)])


assets = [
    watched("everything", "plain"),
    watched("evens", "plain", dict(parity=0), Flaky),
    watched("ordered", "ordered.fifo"),
]
"""


class Scene(BrokerScene):
    """A service on a standard queue and a FIFO queue."""

    def __init__(self, server: ElasticMqServer, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.server = server
        self.queues = [
            server.create_queue("plain", visibility_s=2),
            server.create_queue("ordered.fifo", visibility_s=2),
        ]
        settings = server.connection | {
            "endpoint_url": f"http://127.0.0.1:{proxy.port}",
            "receive_wait_s": 2,
            "max_deliveries": 0,
        }
        stated = "".join(f"{key} = {orjson.dumps(it).decode()}\n" for key, it in settings.items())
        super().__init__(proxy, folder, seed, dags=DAGS, connection=f"[connections.sqs]\n{stated}")

    def send(self, key: int, numbers: Sequence[int]) -> None:
        bodies = [orjson.dumps({"n": n, "parity": n % 2, "group": key}).decode() for n in numbers]
        self.server.send(self.queues[0], bodies)
        self.server.send(self.queues[1], bodies, group=f"g{key}")

    def restart_server(self) -> None:
        """Wait, then restart ElasticMQ. The wait is needed because ElasticMQ answers before it stores a change."""
        time.sleep(2)
        self.server.stop()
        time.sleep(self.random.uniform(0.2, 1.0))
        self.server.start()
        # ElasticMQ listens before it has found its queues again.
        self.until(self._has_its_queues, "the queues are there")

    def until_empty(self) -> None:
        self.until(
            lambda: not any(map(self.server.count, self.queues)),
            "the queues are empty",
            within_s=300,
        )

    def _has_its_queues(self) -> bool:
        names = {url.rpartition("/")[2] for url in self.queues}
        return names <= self.server.queue_names()


@pytest.fixture
def scene(tmp_path: Path, seed: int) -> Iterator[Scene]:
    with service(open_elasticmq(durable=True)) as server, open_tcp_proxy(server.port) as proxy:
        yield from lent(Scene(server, proxy, tmp_path, seed))


def _prove(scene: Scene, *, messages: int, kills: int, cuts: int, restarts: int) -> None:
    acts = [scene.kill] * kills + [scene.cut, scene.make_trouble] * cuts
    acts += [scene.restart_server] * restarts
    scene.go_through(acts, messages=messages)
    scene.until_empty()
    scene.check_numbers(_expected(messages))
    # After a restart, ElasticMQ delivers from a group before it has found all of the group's messages again. So do not
    # check the order. `test_sqs_fifo_conservation` restarts a server that keeps the order.
    if not restarts:
        scene.check_order("ordered", "group")
    scene.end()


def _expected(messages: int) -> dict[str, Counter[int]]:
    return {
        "everything": Counter(range(messages)),
        "evens": Counter(range(0, messages, 2)),
        "ordered": Counter(range(messages)),
    }


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: under kills of whole processes")
@pytest.mark.timeout(500)
def test_each_message_of_a_queue_becomes_one_event_of_each_watcher(scene: Scene) -> None:
    _prove(scene, messages=300, kills=2, cuts=1, restarts=0)


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.rule("one watcher times out, and its siblings get the message again too")
def test_a_sick_watcher_costs_its_siblings_no_delivery(scene: Scene) -> None:
    """The store keeps the messages that the sick watcher fails (rule 18), so SQS delivers each message only once."""
    scene.trouble.touch()
    scene.instance.start()
    scene.publish(200)
    scene.until_empty()
    found = scene.events()["everything"]
    assert Counter(one["n"] for one in found) == Counter(range(200))
    assert {one["times"] for one in found} == {1}
    scene.trouble.unlink()
    scene.check_numbers(_expected(200))
    assert {one["times"] for one in scene.events()["evens"]} == {1}
    scene.end()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_of_5_000_messages_becomes_one_event_in_the_order_of_its_group(scene: Scene) -> None:
    _prove(scene, messages=5_000, kills=10, cuts=5, restarts=0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_of_5_000_messages_becomes_one_event_while_the_server_is_restarted(
    scene: Scene,
) -> None:
    _prove(scene, messages=5_000, kills=3, cuts=2, restarts=4)
