"""Connections between the service and Kafka are reset, or fall silent: no message is lost or used twice.

`make test-all` runs the short tests, and `make soak` runs the long ones.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.conserving import Scene
from tests.services.availability import service
from tests.services.brokers.kafka import BehindProxy, open_kafka
from tests.services.process import free_ports
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

SESSION_S = 6.0
# A request times out before the client's session in the group does. So the client is still a member of the group when
# it repeats the request.
SETTINGS = f"session_timeout_ms = {SESSION_S * 1000:.0f}\nheartbeat_interval_ms = 1000\nrequest_timeout_ms = 5000\n"


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    # No target yet: `scene` starts the broker, and then leads the proxy to the broker's second listener.
    with open_tcp_proxy(0) as opened:
        yield opened


@pytest.fixture
def scene(tmp_path: Path, proxy: TcpProxy) -> Iterator[Scene]:
    """A scene with its own broker. The service connects through the proxy, and the test connects directly."""
    seed = int(os.environ.get("TRIGGERER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with TRIGGERER_SEED={seed}")
    (port,) = free_ports(1)
    proxy.lead_to(port)
    with service(open_kafka(behind_proxy=BehindProxy(port, proxy.port))) as kafka:
        scene = Scene(
            kafka, tmp_path, f"sqlite:///{tmp_path / 'triggerer.db'}", seed=seed, patience_s=180,
            settings=SETTINGS, bootstrap=f"127.0.0.1:{proxy.port}",
        )  # fmt: skip
        yield scene
        if scene.first.is_running:
            scene.first.kill()


def _prove(
    scene: Scene, proxy: TcpProxy, *, messages: int, resets: int, silences: int, kills: int
) -> None:
    def cut(how: Callable[[], None], longest_s: float) -> None:
        how()
        # Messages that are published in the meantime arrive after the cut.
        scene.publish(messages // 100)
        # How long the cut lasts.
        time.sleep(scene.random.uniform(0.2, longest_s))
        proxy.heal()

    scene.publish(messages // 4)
    scene.first.start()
    # A silence lasts up to two session timeouts. Kafka may then remove the service from the consumer group.
    acts: list[Callable[[], None]] = [lambda: cut(proxy.refuse, 4.0)] * resets
    acts += [lambda: cut(proxy.silence, 2 * SESSION_S)] * silences
    acts += [scene.kill_and_restart] * kills
    scene.random.shuffle(acts)
    for act in acts:
        scene.publish(messages // 2 // len(acts))
        scene.pause()
        act()
    scene.publish(messages - sum(map(len, scene.sent.values())))
    scene.check()
    assert scene.first.stop() == 0, scene.first.tail()
    assert scene.first.orphans() == []


@pytest.mark.long
@pytest.mark.rule("S1, S2, S4: under kills of whole processes")
@pytest.mark.timeout(500)
def test_each_message_becomes_one_event_of_each_watcher_while_the_network_is_cut(
    scene: Scene, proxy: TcpProxy
) -> None:
    _prove(scene, proxy, messages=5_000, resets=2, silences=1, kills=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_of_100_000_messages_becomes_one_event_while_the_network_is_cut_again_and_again(
    scene: Scene, proxy: TcpProxy
) -> None:
    _prove(scene, proxy, messages=100_000, resets=12, silences=8, kills=5)
