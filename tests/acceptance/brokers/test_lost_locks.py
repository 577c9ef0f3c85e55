"""A whole service with filters that work longer than the locks of their messages last. No lock can be renewed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest

from tests.acceptance.broker_scene import BrokerScene, lent
from tests.services.availability import service
from tests.services.brokers.servicebus import ServiceBusServer, open_servicebus
from tests.services.brokers.servicebus.service import connection_string
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

LOCK_S = 2.0
DAGS = f"""
import anyio

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.servicebus import ServiceBusEventTrigger


class Slow(ServiceBusEventTrigger):
    def serialize(self):
        return f"{{__name__}}.Slow", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async def slowly():
            async for message in shared_stream:
                if message.json()["n"] == 3:
                    await anyio.sleep({LOCK_S * 3.5})
                yield message

        async for event in super().filter_shared_stream(slowly()):
            yield event


def watched(name, queue, cls=ServiceBusEventTrigger):
    trigger = cls(queue, extra=dict(n="n", session="@session_id"))
    return Asset(name=name, uri=f"x-lost://{{name}}", watchers=[AssetWatcher(name, trigger)])


assets = [
    watched("plain", "plain"),
    watched("slow_plain", "plain", Slow),
    watched("ordered", "ordered"),
    watched("slow_ordered", "ordered", Slow),
]
"""
COUNT = 40


class Scene(BrokerScene):
    def __init__(self, server: ServiceBusServer, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.server = server
        self.paths = (
            server.create("plain", lock_s=LOCK_S),
            server.create("ordered", requires_session=True, lock_s=LOCK_S),
        )
        connection = (
            f'[connections.servicebus]\nconnection_string = "{connection_string(proxy.port)}"\n'
        )
        super().__init__(proxy, folder, seed, dags=DAGS, connection=connection)

    def send(self, key: int, numbers: Sequence[int]) -> None:
        bodies = [orjson.dumps({"n": n}) for n in numbers]
        self.server.send("plain", bodies)
        self.server.send("ordered", bodies, session_id=f"s{key}")

    def all_is_locked(self) -> bool:
        return all(one["locked"] for one in self.server.look("ordered")["messages"])

    def of(self, name: str) -> list[int]:
        return [one["n"] for one in self.events()[name]]


@pytest.fixture
def scene(tmp_path: Path, seed: int) -> Iterator[Scene]:
    with service(open_servicebus(durable=True)) as server, open_tcp_proxy(server.port) as proxy:
        yield from lent(Scene(server, proxy, tmp_path, seed))


@pytest.mark.long
@pytest.mark.rule(
    "a lost session lock never heals; that no session is available counts as a failure"
)
@pytest.mark.parametrize(
    "how", ["renewal is refused", pytest.param("links are detached", marks=pytest.mark.soak)]
)
def test_the_open_messages_of_a_slow_filter_with_lost_locks_come_once_and_in_order(
    scene: Scene, how: str
) -> None:
    def detach() -> None:
        for path in scene.paths:
            scene.server.order(
                "detach", path=path, condition="amqp:link:detach-forced", description="updated"
            )

    scene.publish(COUNT)
    if how == "renewal is refused":
        for path in scene.paths:
            scene.server.order("refuse_renewals", path=path, refuse=True)
    scene.instance.start()
    everything = Counter(range(COUNT))

    scene.until(
        lambda: scene.numbers().get("plain") == scene.numbers().get("ordered") == everything,
        "the quick ones have everything",
    )
    # The slow watchers still work on this message, and have not seen the later messages.
    assert 3 not in scene.of("slow_plain")
    assert 3 not in scene.of("slow_ordered")
    if how == "links are detached":
        for _ in range(3):
            detach()
            scene.until(scene.all_is_locked, "what is in hand of the sessions comes again")

    scene.check_numbers(
        dict.fromkeys(("plain", "slow_plain", "ordered", "slow_ordered"), everything)
    )
    for name in ("ordered", "slow_ordered"):
        scene.check_order(name, "session")
    scene.until(lambda: not any(map(scene.server.values, scene.paths)), "the queues are empty")
    for path in scene.paths:
        assert scene.server.dead_letters(path) == []
        assert scene.server.look(path)["abandoned"] == 0
    scene.end()
