"""Subscriptions of Pub/Sub, and everything killed and cut now and then: nothing lost, nothing twice, and keys in order.

`make soak` runs it in full; `make test` runs a share of it. pstest keeps everything in memory, so it cannot be
restarted: connections are cut instead, and the streams of the server that keeps the service's rules are broken.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import orjson
import pytest

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records, conservation
from tests.services.pubsub_admin import PROJECT, PubSubAdmin
from tests.services.pubsub_double import PubSubDouble, open_pubsub_double
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

if TYPE_CHECKING:
    from tests.services.pubsub import PubSubServer

KEYS = 5

DAGS = """
from pathlib import Path

from triggerer import DAG, Asset, AssetWatcher, task
from watchers.pubsub import PubSubEventTrigger


TROUBLE = Path("{trouble}")


class Flaky(PubSubEventTrigger):
    # Raises on some messages for as long as a file is there.
    def serialize(self):
        return f"{__name__}.Flaky", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async def raising():
            async for message in shared_stream:
                if message.json()["n"] % 50 == 4 and TROUBLE.exists():
                    raise RuntimeError(f"trouble at {message!r}")
                yield message

        async for event in super().filter_shared_stream(raising()):
            yield event


def watched(name, subscription, match=None, cls=PubSubEventTrigger):
    trigger = cls(subscription, match=match, extra={"n": "n", "key": "key"})
    return Asset(name=name, uri=f"x-soak://{name}", watchers=[AssetWatcher(name, trigger)])


everything = watched("everything", "plain")
evens = watched("evens", "plain", {"parity": 0}, Flaky)
ordered = watched("ordered", "ordered")
thirds = watched("thirds", "ordered", {"third": 0}, Flaky)

for asset in (everything, evens, ordered, thirds):
    with DAG(f"on_{asset.name}", schedule=asset):

        @task
        def count(triggering_asset_events):
            return sum(len(events) for events in triggering_asset_events.values())

        count()
"""


class Scene:
    """A plain and an ordered exactly-once subscription behind a proxy that cuts connections, and one service."""

    def __init__(self, server: PubSubAdmin, proxy: TcpProxy, folder: Path, seed: int) -> None:
        self.server = server
        self.proxy = proxy
        self.random = random.Random(seed)
        self.sent = 0
        server.create("plain")
        server.create("ordered", enable_message_ordering=True, enable_exactly_once_delivery=True)
        dags = folder / "dags"
        dags.mkdir()
        self.trouble = folder / "trouble"
        (dags / "soak.py").write_text(DAGS.replace("{trouble}", str(self.trouble)))
        url = f"sqlite:///{folder / 'triggerer.db'}"
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap="127.0.0.1:1",
            settings=f'[connections.pubsub]\nproject = "{PROJECT}"\n'
            f'emulator_host = "127.0.0.1:{proxy.port}"\nack_deadline_s = 3\n',
        )

    def publish(self, count: int) -> None:
        """Send the next messages to both topics; those of a key in order."""
        by_key = defaultdict(list)
        for n in range(self.sent, self.sent + count):
            key = self.random.randrange(KEYS)
            by_key[key].append(orjson.dumps({"n": n, "parity": n % 2, "third": n % 3, "key": key}))
        self.sent += count
        for key, bodies in by_key.items():
            self.server.publish("plain", bodies)
            self.server.publish("ordered", bodies, key=f"k{key}")

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

    def break_streams(self) -> None:
        """As the service does when it moves a stream to another of its servers; acknowledgements fail meanwhile."""
        if isinstance(self.server, PubSubDouble):
            self.server.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE, times=5)
            self.server.break_streams()

    def events(self) -> dict[str, list[dict[str, int]]]:
        """What each asset has, in the order in which it was stored; nothing as long as there are no tables."""
        found: dict[str, list[dict[str, int]]] = defaultdict(list)
        if not self.records.holds("SELECT 1 + count(*) FROM asset_event"):
            return found
        for name, extra in self.records.rows(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id"
            " ORDER BY e.id"
        ):
            found[name].append(orjson.loads(extra))
        return found

    def numbers(self) -> dict[str, Counter[int]]:
        return {name: Counter(one["n"] for one in found) for name, found in self.events().items()}

    def expected(self) -> dict[str, Counter[int]]:
        return {
            "everything": Counter(range(self.sent)),
            "evens": Counter(range(0, self.sent, 2)),
            "ordered": Counter(range(self.sent)),
            "thirds": Counter(range(0, self.sent, 3)),
        }

    def check_order(self) -> None:
        """Within each key, for both watchers of the ordered subscription."""
        for name in ("ordered", "thirds"):
            by_key: dict[int, list[int]] = defaultdict(list)
            for event in self.events()[name]:
                by_key[event["key"]].append(event["n"])
            assert all(found == sorted(found) for found in by_key.values()), name


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("TRIGGERER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with TRIGGERER_SEED={chosen}")
    return chosen


@pytest.fixture
def by_the_rules(tmp_path: Path, seed: int) -> Iterator[Scene]:
    with open_pubsub_double() as server, open_tcp_proxy(server.port) as proxy:
        yield from _scene(Scene(server, proxy, tmp_path, seed))


@pytest.fixture
def on_pstest(pubsub_server: PubSubServer, tmp_path: Path, seed: int) -> Iterator[Scene]:
    with open_tcp_proxy(pubsub_server.port) as proxy:
        yield from _scene(Scene(pubsub_server, proxy, tmp_path, seed))
        pubsub_server.delete("plain")
        pubsub_server.delete("ordered")


def _scene(scene: Scene) -> Iterator[Scene]:
    yield scene
    if scene.instance.is_running:
        scene.instance.kill()


def _prove(scene: Scene, *, messages: int, kills: int, cuts: int, breaks: int) -> None:
    scene.publish(messages // 4)
    scene.instance.start()
    acts: list[Callable[[], None]] = [scene.kill] * kills + [scene.cut] * cuts
    acts += [scene.break_streams] * breaks
    scene.random.shuffle(acts)
    for act in acts:
        time.sleep(scene.random.uniform(0.5, 3.0))
        scene.publish(messages * 3 // 4 // len(acts))
        act()
    expected = scene.expected()

    wait_until(
        lambda: sum(map(len, scene.events().values())) >= sum(map(len, expected.values())),
        within_s=240,
        what="all events are there",
        of=scene.instance,
    )
    assert scene.numbers() == expected
    if isinstance(scene.server, PubSubDouble):
        scene.check_order()
    wait_until(
        lambda: conservation(scene.records).queued == 0,
        within_s=120,
        what="all events are in runs",
        of=scene.instance,
    )
    found = conservation(scene.records)
    assert found.taken == found.events == sum(map(len, expected.values()))
    assert scene.instance.stop() == 0
    assert scene.instance.orphans() == []
    assert scene.numbers() == expected


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: whole processes, killed")
@pytest.mark.timeout(500)
def test_a_service_that_is_killed_and_cut_off_loses_and_repeats_nothing(
    by_the_rules: Scene,
) -> None:
    _prove(by_the_rules, messages=2_000, kills=2, cuts=2, breaks=2)


@pytest.mark.rule("one watcher times out: the delivery is repeated for its siblings")
def test_a_sick_watcher_costs_its_siblings_no_redelivery_and_nobody_a_delivery_count(
    by_the_rules: Scene,
) -> None:
    scene = by_the_rules
    scene.trouble.touch()
    scene.publish(200)
    scene.instance.start()
    expected = scene.expected()
    wait_until(
        lambda: (
            (found := scene.numbers()).get("everything") == expected["everything"]
            and found.get("ordered") == expected["ordered"]
        ),
        within_s=120,
        what="the well ones have everything",
        of=scene.instance,
    )
    assert isinstance(scene.server, PubSubDouble)
    entries = [*scene.server.entries("plain"), *scene.server.entries("ordered")]
    wait_until(
        lambda: all(one.is_acked for one in entries),
        within_s=60,
        what="the service was told of everything",
        of=scene.instance,
    )
    assert sum(map(len, scene.numbers().values())) < sum(map(len, expected.values()))
    scene.trouble.unlink()
    wait_until(
        lambda: scene.numbers() == expected,
        within_s=120,
        what="the sick ones have what they missed",
        of=scene.instance,
    )
    scene.check_order()
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
