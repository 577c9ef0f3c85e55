"""Queues of SQS, and everything killed now and then: nothing lost, nothing twice, and groups in order.

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
from tests.services.elasticmq import ElasticMqServer, open_elasticmq
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

GROUPS = 5

DAGS = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.sqs import SqsEventTrigger


def watched(name, queue, match=None):
    extra = {"n": "n", "group": "group"}
    trigger = SqsEventTrigger(queue, match=match, extra=extra)
    return Asset(name=name, uri=f"x-soak://{name}", watchers=[AssetWatcher(name, trigger)])


everything = watched("everything", "plain")
evens = watched("evens", "plain", {"parity": 0})
ordered = watched("ordered", "ordered.fifo")

for asset in (everything, evens, ordered):
    with DAG(f"on_{asset.name}", schedule=asset):

        @task
        def count(triggering_asset_events):
            return sum(len(events) for events in triggering_asset_events.values())

        count()
"""


class Scene:
    """A standard queue and a FIFO queue behind a proxy that cuts connections, and one service."""

    def __init__(self, server: ElasticMqServer, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.server = server
        self.proxy = proxy
        self.random = random.Random(seed)
        self.sent = 0
        self.queues = [
            server.create_queue("plain", visibility_s=2),
            server.create_queue("ordered.fifo", visibility_s=2),
        ]
        dags = folder / "dags"
        dags.mkdir()
        (dags / "soak.py").write_text(DAGS)
        url = f"sqlite:///{folder / 'triggerer.db'}"
        self.records = Records(url)
        settings = server.connection | {
            "endpoint_url": f"http://127.0.0.1:{proxy.port}",
            "receive_wait_s": 2,
            "max_deliveries": 0,
        }
        stated = "".join(f"{key} = {orjson.dumps(it).decode()}\n" for key, it in settings.items())
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap="127.0.0.1:1",
            settings=f"[connections.sqs]\n{stated}",
        )

    def publish(self, count: int) -> None:
        """Send the next messages to both queues; those of a group in order."""
        by_group = defaultdict(list)
        for n in range(self.sent, self.sent + count):
            group = self.random.randrange(GROUPS)
            body = orjson.dumps({"n": n, "parity": n % 2, "group": group}).decode()
            by_group[group].append(body)
        self.sent += count
        for group, bodies in by_group.items():
            self.server.send(self.queues[0], bodies)
            self.server.send(self.queues[1], bodies, group=f"g{group}")

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

    def restart_server(self) -> None:
        """It stores what it has answered a moment later."""
        time.sleep(2)
        self.server.stop()
        time.sleep(self.random.uniform(0.2, 1.0))
        self.server.start()
        # It listens before it has found its queues again.
        wait_until(self._has_its_queues, within_s=60, what="the queues are there", of=self.instance)

    def _has_its_queues(self) -> bool:
        names = {url.rpartition("/")[2] for url in self.queues}
        return names <= self.server.queue_names()

    def events(self) -> dict[str, list[dict[str, int]]]:
        """What each asset has, in the order in which it was stored."""
        found: dict[str, list[dict[str, int]]] = defaultdict(list)
        for name, extra in self.records.rows(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
        ):
            found[name].append(orjson.loads(extra))
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    seed = int(os.environ.get("TRIGGERER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with TRIGGERER_SEED={seed}")
    with service(open_elasticmq(durable=True)) as server, open_tcp_proxy(server.port) as proxy:
        scene = Scene(server, proxy, tmp_path, seed)
        yield scene
        if scene.instance.is_running:
            scene.instance.kill()


def _prove(scene: Scene, *, messages: int, kills: int, cuts: int, restarts: int) -> None:
    scene.publish(messages // 4)
    scene.instance.start()
    acts: list[Callable[[], None]] = [scene.kill] * kills + [scene.cut] * cuts
    acts += [scene.restart_server] * restarts
    scene.random.shuffle(acts)
    for act in acts:
        scene.publish(messages // 2 // len(acts))
        time.sleep(scene.random.uniform(0.5, 3.0))
        act()
    scene.publish(messages - scene.sent)
    wait_until(
        lambda: not any(map(scene.server.count, scene.queues)),
        within_s=300,
        what="the queues are empty",
        of=scene.instance,
    )
    wait_until(
        lambda: (now := conservation(scene.records)).queued == 0 and now.active_runs == 0,
        within_s=120,
        what="all events are in runs that ended",
        of=scene.instance,
    )
    events = scene.events()
    evens = range(0, messages, 2)
    assert Counter(one["n"] for one in events["everything"]) == Counter(range(messages))
    assert Counter(one["n"] for one in events["evens"]) == Counter(evens)
    assert Counter(one["n"] for one in events["ordered"]) == Counter(range(messages))
    # A server that was restarted hands a group out before it has found all of its messages again.
    for group in range(0 if restarts else GROUPS):
        numbers = [one["n"] for one in events["ordered"] if one["group"] == group]
        assert numbers == sorted(numbers), f"group {group} is out of order"
    assert scene.instance.stop() == 0, scene.instance.tail()
    assert scene.instance.orphans() == []


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: whole processes, killed")
@pytest.mark.timeout(500)
def test_each_message_of_a_queue_becomes_one_event_of_each_watcher(scene: Scene) -> None:
    _prove(scene, messages=600, kills=2, cuts=1, restarts=0)


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
