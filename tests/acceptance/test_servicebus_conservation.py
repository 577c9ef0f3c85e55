"""Queues of Service Bus, and everything cut and killed now and then: nothing lost, nothing twice, sessions in order.

`make soak` runs it in full; `make test` runs a share of it.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records, conservation
from tests.services.availability import service
from tests.services.servicebus import ServiceBusServer, open_servicebus
from tests.services.servicebus.service import connection_string
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

SESSIONS = 5

DAGS = """
from pathlib import Path

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.servicebus import ServiceBusEventTrigger

TROUBLE = Path("TROUBLE-FILE")


class Sick(ServiceBusEventTrigger):
    # Raises on each seventh message for as long as a file is there.

    def serialize(self):
        return f"{__name__}.Sick", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async def raising():
            async for message in shared_stream:
                if message.position["sequence_number"] % 7 == 3 and TROUBLE.exists():
                    raise RuntimeError(f"trouble at {message!r}")
                yield message

        async for event in super().filter_shared_stream(raising()):
            yield event


def watched(name, trigger):
    return Asset(name=name, uri=f"x-soak://{name}", watchers=[AssetWatcher(name, trigger)])


plain, ordered, extra = "QUEUE-plain", "QUEUE-ordered", {"n": "n", "session": "@session_id"}
everything = watched("everything", ServiceBusEventTrigger(plain, extra=extra))
evens = watched("evens", Sick(plain, match={"parity": 0}, extra=extra))
in_order = watched("in_order", ServiceBusEventTrigger(ordered, extra=extra))

for asset in (everything, evens, in_order):
    with DAG(f"on_{asset.name}", schedule=asset):

        @task
        def count(triggering_asset_events):
            return sum(len(events) for events in triggering_asset_events.values())

        count()
"""


class Scene:
    """A queue without sessions and one with, behind a proxy that cuts connections, and one service."""

    def __init__(self, server: ServiceBusServer, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.server = server
        self.proxy = proxy
        self.random = random.Random(seed)
        self.sent = 0
        name = f"soak-{seed:x}"
        self.plain = server.create(f"{name}-plain", lock_s=3.0, max_delivery_count=1_000)
        self.ordered = server.create(
            f"{name}-ordered", requires_session=True, lock_s=3.0, max_delivery_count=1_000
        )
        dags = folder / "dags"
        dags.mkdir()
        self.trouble = folder / "trouble"
        (dags / "soak.py").write_text(
            DAGS.replace("QUEUE", name).replace("TROUBLE-FILE", str(self.trouble))
        )
        url = f"sqlite:///{folder / 'triggerer.db'}"
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap="127.0.0.1:1",
            settings=(
                "[connections.servicebus]\n"
                f'connection_string = "{connection_string(proxy.port)}"\nmax_deliveries = 0\n'
            ),
        )

    def publish(self, count: int) -> None:
        """Send the next messages to both queues; those of a session in order."""
        by_session = defaultdict(list)
        for n in range(self.sent, self.sent + count):
            by_session[self.random.randrange(SESSIONS)].append(
                orjson.dumps({"n": n, "parity": n % 2})
            )
        self.sent += count
        for session, bodies in by_session.items():
            self.server.send(self.plain, bodies)
            self.server.send(self.ordered, bodies, session_id=f"s{session}")

    def kill(self) -> None:
        """SIGKILL, and start again."""
        self.instance.kill()
        assert self.instance.orphans() == []
        self.instance.start()

    def cut(self) -> None:
        """All connections are reset, and for a while none can be made."""
        self.proxy.refuse()
        time.sleep(self.random.uniform(0.2, 2.0))
        self.proxy.heal()

    def detach(self) -> None:
        """The service drops all links, as when it is updated."""
        for path in (self.plain, self.ordered):
            self.server.order(
                "detach", path=path, condition="amqp:link:detach-forced", description="updated"
            )

    def lose_locks(self) -> None:
        for path in (self.plain, self.ordered):
            self.server.order("expire_locks", path=path)

    def restart_server(self) -> None:
        """Locks and sessions end with it; what was not settled is there again, under its number and with its count."""
        self.server.restart()

    @property
    def is_empty(self) -> bool:
        return not self.server.values(self.plain) and not self.server.values(self.ordered)

    def events(self) -> dict[str, list[dict[str, int | str]]]:
        """What each asset has, in the order in which it was stored."""
        found: dict[str, list[dict[str, int | str]]] = defaultdict(list)
        for name, extra in self.records.rows(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
        ):
            found[name].append(orjson.loads(extra))
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    seed = int(os.environ.get("TRIGGERER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with TRIGGERER_SEED={seed}")
    with service(open_servicebus(durable=True)) as server, open_tcp_proxy(server.port) as proxy:
        scene = Scene(server, proxy, tmp_path, seed)
        yield scene
        if scene.instance.is_running:
            scene.instance.kill()


def _prove(scene: Scene, *, messages: int, kills: int, others: int, restarts: int) -> None:
    scene.publish(messages // 4)
    scene.instance.start()
    acts: list[Callable[[], None]] = [scene.kill] * kills
    acts += [scene.cut, scene.detach, scene.lose_locks] * others
    acts += [scene.restart_server] * restarts
    scene.random.shuffle(acts)
    for act in acts:
        scene.publish(messages // 2 // len(acts))
        time.sleep(scene.random.uniform(0.5, 3.0))
        act()
    scene.publish(messages - scene.sent)
    _check(scene)


def _check(scene: Scene) -> None:
    """All that was sent has become one event of each watcher, in a run that has ended."""
    messages = scene.sent
    wait_until(lambda: scene.is_empty, within_s=300, what="the queues are empty", of=scene.instance)
    wait_until(
        lambda: (now := conservation(scene.records)).queued == 0 and now.active_runs == 0,
        within_s=120,
        what="all events are in runs that ended",
        of=scene.instance,
    )
    events = scene.events()
    assert Counter(one["n"] for one in events["everything"]) == Counter(range(messages))
    assert Counter(one["n"] for one in events["evens"]) == Counter(range(0, messages, 2))
    assert Counter(one["n"] for one in events["in_order"]) == Counter(range(messages))
    for session in range(SESSIONS):
        numbers = [one["n"] for one in events["in_order"] if one["session"] == f"s{session}"]
        assert numbers == sorted(numbers), f"session s{session} is out of order"
    for path in (scene.plain, scene.ordered):
        assert scene.server.dead_letters(path) == []
    assert scene.instance.stop() == 0, scene.instance.tail()
    assert scene.instance.orphans() == []


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: whole processes, killed")
@pytest.mark.timeout(500)
def test_each_message_of_a_queue_becomes_one_event_of_each_watcher(scene: Scene) -> None:
    _prove(scene, messages=600, kills=2, others=1, restarts=1)


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_sick_watcher_costs_its_siblings_no_delivery(scene: Scene) -> None:
    """What it misses is kept for it (rule 18): the queue is emptied, and nothing is abandoned."""
    scene.trouble.touch()
    scene.instance.start()
    scene.publish(200)
    wait_until(lambda: scene.is_empty, within_s=120, what="the queues are empty", of=scene.instance)
    assert scene.server.look(scene.plain)["abandoned"] == 0
    everything = Counter(one["n"] for one in scene.events()["everything"])
    assert everything == Counter(range(200))
    scene.trouble.unlink()
    wait_until(
        lambda: len(scene.events()["evens"]) == 100,
        within_s=120,
        what="the sick one has caught up",
        of=scene.instance,
    )
    assert scene.server.look(scene.plain)["abandoned"] == 0
    _check(scene)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_of_5_000_messages_becomes_one_event_in_the_order_of_its_session(
    scene: Scene,
) -> None:
    _prove(scene, messages=5_000, kills=10, others=4, restarts=4)
