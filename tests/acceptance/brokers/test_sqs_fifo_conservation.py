"""Kills and restarts everything around a FIFO queue: no message is lost or repeated, and each group stays in order.

ElasticMQ loses the order at a restart. So the tests use `tests/services/brokers/sqs_double.py`, which keeps the order.

`make test-all` runs the short tests, and `make soak` runs the long ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.acceptance.broker_scene import FLAKY, BrokerScene, lent
from tests.services.brokers.sqs_double import FifoDouble, open_fifo_double
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

# Both trigger classes fail at messages with `n % 3 == 1`, so the queue must deliver these messages again. Only `OnOne`
# fails at messages with `n % 3 == 0`.
_FLAKY = FLAKY.replace("BASE", "SqsEventTrigger")
_BOTH = _FLAKY.replace("FAILS", 'message.json()["n"] % 3 == 1').replace("Flaky", "OnBoth")
_ONE = _FLAKY.replace("FAILS", 'message.json()["n"] % 3 != 2').replace("Flaky", "OnOne")
DAGS = f"""
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.sqs import SqsEventTrigger
{_BOTH}
{_ONE}

def watched(name, cls, match=None):
    trigger = cls("QUEUE", match=match, extra=dict(n="n", group="group"))
    return Asset(name=name, uri=f"x-soak://{{name}}", watchers=[AssetWatcher(name, trigger)])


assets = [watched("ordered", OnBoth), watched("evens", OnOne, dict(parity=0))]
"""


class Scene(BrokerScene):
    """A service on a FIFO queue, whose server runs on an event loop of its own."""

    def __init__(
        self, server: FifoDouble, portal: BlockingPortal, proxy: TcpProxy, folder: Path, seed: int
    ) -> None:
        self.server = server
        self.portal = portal
        endpoint = f"http://127.0.0.1:{proxy.port}"
        quick = {"redelivery_delay_s": 0.2, "redelivery_delay_max_s": 1.0, "max_deliveries": 0}
        settings = server.connection | quick | {"endpoint_url": endpoint, "receive_wait_s": 2}
        stated = "".join(f"{key} = {orjson.dumps(it).decode()}\n" for key, it in settings.items())
        dags = DAGS.replace("QUEUE", server.url.replace(server.endpoint, endpoint))
        super().__init__(proxy, folder, seed, dags=dags, connection=f"[connections.sqs]\n{stated}")

    def send(self, key: int, numbers: Sequence[int]) -> None:
        bodies = [orjson.dumps({"n": n, "parity": n % 2, "group": key}).decode() for n in numbers]
        self.portal.call(lambda: self.server.send(bodies, group=f"g{key}"))

    def restart_server(self) -> None:
        self.portal.call(self.server.stop)
        # How long the server is away.
        time.sleep(self.random.uniform(0.2, 1.0))
        self.portal.call(self.server.start)

    def deleted(self) -> list[int]:
        """Return the numbers of the deleted messages, in the order of the deletions."""
        return self.portal.call(lambda: [orjson.loads(one)["n"] for one in self.server.deleted])


@pytest.fixture
def scene(tmp_path: Path, seed: int) -> Iterator[Scene]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_fifo_double(visibility_s=2)) as server,
        open_tcp_proxy(server.port) as proxy,
    ):
        yield from lent(Scene(server, portal, proxy, tmp_path, seed))


def _prove(scene: Scene, *, messages: int, kills: int, others: int) -> None:
    acts = [scene.cut, scene.restart_server, scene.make_trouble] * others
    scene.go_through([scene.kill] * kills + acts, messages=messages)
    scene.until(lambda: len(scene.deleted()) == messages, "the queue is empty", within_s=300)
    scene.check_numbers(
        {"ordered": Counter(range(messages)), "evens": Counter(range(0, messages, 2))}
    )
    for name in ("ordered", "evens"):
        scene.check_order(name, "group")
    assert Counter(scene.deleted()) == Counter(range(messages))
    scene.end()


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.rule(
    "FIFO: the server is restarted with messages in flight; groups keep their order, nothing is lost or done twice"
)
@pytest.mark.soak
def test_groups_keep_their_order_whatever_is_killed_cut_off_and_restarted(scene: Scene) -> None:
    _prove(scene, messages=400, kills=2, others=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_groups_keep_their_order_over_5_000_messages_and_ten_kills(scene: Scene) -> None:
    _prove(scene, messages=5_000, kills=10, others=5)
