"""Cuts connections to Service Bus, and kills processes: no message is lost or repeated, and sessions stay in order.

`make test-all` runs the short tests, and `make soak` runs the long ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest

from tests.acceptance.broker_scene import FLAKY, BrokerScene, lent
from tests.services.availability import service
from tests.services.brokers.servicebus import ServiceBusServer, open_servicebus
from tests.services.brokers.servicebus.service import connection_string
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

_FLAKY = FLAKY.replace("BASE", "ServiceBusEventTrigger").replace(
    "FAILS", 'message.position["sequence_number"] % 7 == 3'
)
DAGS = f"""
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.servicebus import ServiceBusEventTrigger
{_FLAKY}

def watched(name, queue, match=None, cls=ServiceBusEventTrigger):
    trigger = cls(queue, match=match, extra=dict(n="n", session="@session_id"))
    return Asset(name=name, uri=f"x-soak://{{name}}", watchers=[AssetWatcher(name, trigger)])


assets = [
    watched("everything", "QUEUE-plain"),
    watched("evens", "QUEUE-plain", dict(parity=0), Flaky),
    watched("in_order", "QUEUE-ordered"),
    watched("thirds_in_order", "QUEUE-ordered", dict(third=0), Flaky),
]
"""


class Scene(BrokerScene):
    """A service on a queue without sessions and a queue with sessions."""

    def __init__(self, server: ServiceBusServer, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.server = server
        name = f"soak-{seed:x}"
        self.plain = server.create(f"{name}-plain", lock_s=3.0, max_delivery_count=1_000)
        self.ordered = server.create(
            f"{name}-ordered", requires_session=True, lock_s=3.0, max_delivery_count=1_000
        )
        connection = (
            "[connections.servicebus]\n"
            f'connection_string = "{connection_string(proxy.port)}"\nmax_deliveries = 0\n'
        )
        dags = DAGS.replace("QUEUE", name)
        super().__init__(proxy, folder, seed, dags=dags, connection=connection)

    def send(self, key: int, numbers: Sequence[int]) -> None:
        bodies = [orjson.dumps({"n": n, "parity": n % 2, "third": n % 3}) for n in numbers]
        self.server.send(self.plain, bodies)
        self.server.send(self.ordered, bodies, session_id=f"s{key}")

    def detach(self) -> None:
        """Detach all links, as the vendor's service does when it is updated."""
        for path in (self.plain, self.ordered):
            self.server.order(
                "detach", path=path, condition="amqp:link:detach-forced", description="updated"
            )

    def lose_locks(self) -> None:
        for path in (self.plain, self.ordered):
            self.server.order("expire_locks", path=path)

    def restart_server(self) -> None:
        """Restart the server. Locks and sessions end; unsettled messages keep their numbers and delivery counts."""
        self.server.restart()

    @property
    def is_empty(self) -> bool:
        return not self.server.values(self.plain) and not self.server.values(self.ordered)

    def until_empty(self) -> None:
        self.until(lambda: self.is_empty, "the queues are empty", within_s=300)


@pytest.fixture
def scene(tmp_path: Path, seed: int) -> Iterator[Scene]:
    with service(open_servicebus(durable=True)) as server, open_tcp_proxy(server.port) as proxy:
        yield from lent(Scene(server, proxy, tmp_path, seed))


def _prove(scene: Scene, *, messages: int, kills: int, others: int, restarts: int) -> None:
    acts = [scene.kill] * kills
    acts += [scene.cut, scene.detach, scene.lose_locks, scene.make_trouble] * others
    scene.go_through(acts + [scene.restart_server] * restarts, messages=messages)
    _check(scene)


def _check(scene: Scene) -> None:
    scene.until_empty()
    scene.check_numbers(
        {
            "everything": Counter(range(scene.sent)),
            "evens": Counter(range(0, scene.sent, 2)),
            "in_order": Counter(range(scene.sent)),
            "thirds_in_order": Counter(range(0, scene.sent, 3)),
        }
    )
    for name in ("in_order", "thirds_in_order"):
        scene.check_order(name, "session")
    for path in (scene.plain, scene.ordered):
        assert scene.server.dead_letters(path) == []
    scene.end()


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: under kills of whole processes")
@pytest.mark.timeout(500)
def test_each_message_of_a_queue_becomes_one_event_of_each_watcher(scene: Scene) -> None:
    _prove(scene, messages=300, kills=2, others=1, restarts=1)


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_sick_watcher_costs_its_siblings_no_delivery(scene: Scene) -> None:
    """The store keeps the messages that a sick watcher fails (rule 18), so both queues become empty."""
    scene.trouble.touch()
    scene.instance.start()
    scene.publish(200)
    scene.until_empty()
    for name in ("everything", "in_order"):
        assert scene.numbers()[name] == Counter(range(200))
    scene.trouble.unlink()
    _check(scene)
    for path in (scene.plain, scene.ordered):
        assert scene.server.look(path)["abandoned"] == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_of_5_000_messages_becomes_one_event_in_the_order_of_its_session(
    scene: Scene,
) -> None:
    _prove(scene, messages=5_000, kills=10, others=4, restarts=4)
