"""Two instances on PostgreSQL and Kafka are attacked. No event is lost or doubled, and delivery continues.

`make soak` attacks at random for an hour (`TRIGGERER_ATTACK_S`), from a seed (`TRIGGERER_SEED`).
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy.engine import make_url

from tests.acceptance.conserving import Scene
from tests.acceptance.instance import wait_until
from tests.services.brokers.kafka import KafkaServer
from tests.services.databases.postgres import PostgresServer
from tests.services.tcp_proxy import TcpProxy, open_tcp_proxy

LEASE_S = 4
SETTINGS = f"""
[triggerer]
lease_duration = {LEASE_S}
[executor]
lease_duration = 10
"""
MESSAGES_PER_S = 100


@pytest.fixture(scope="session")
def postgres_server(durable_postgres_server: PostgresServer) -> PostgresServer:
    return durable_postgres_server


class Attacked:
    """A scene with two instances, each with a way of its own to the database."""

    def __init__(
        self,
        scene: Scene,
        kafka: KafkaServer,
        postgres: PostgresServer,
        proxies: dict[str, TcpProxy],
    ) -> None:
        self.scene = scene
        self.kafka = kafka
        self.postgres = postgres
        self.proxies = proxies
        self.instances = {
            name: scene.instance(name, url=_through(proxy, scene.url))
            for name, proxy in proxies.items()
        }

    def start(self) -> None:
        for name, instance in self.instances.items():
            instance.start()
            self.until_it_owns(name)

    def until_it_owns(self, name: str) -> None:
        instance = self.instances[name]
        wait_until(
            lambda: self.scene.records.holds(
                f"SELECT count(*) FROM stream WHERE owner LIKE '%:{instance.pid}:%'"
                " AND expires_at > now()"
            ),
            within_s=60,
            what=f"{name} owns a stream",
            of=instance,
        )

    def owner(self, group: str) -> str | None:
        """The name of the instance that owns the stream of a consumer group."""
        found = self.scene.records.rows(
            f"SELECT owner FROM stream WHERE key LIKE '%{group}%' AND expires_at > now()"
        )
        pids = {int(owner.split(":")[1]) for (owner,) in found if owner}
        return next((name for name, one in self.instances.items() if one.pid in pids), None)

    def until_owned_by_another(self, group: str, former: str) -> str:
        wait_until(
            lambda: self.owner(group) not in {None, former},
            within_s=60,
            what=f"another than {former} owns {group}",
            of=next(one for name, one in self.instances.items() if name != former),
            every_s=0.05,
        )
        owner = self.owner(group)
        assert owner is not None
        return owner

    def end(self) -> None:
        for instance in self.instances.values():
            if instance.is_running:
                psutil.Process(instance.pid).resume()
                instance.kill()


def _through(proxy: TcpProxy, url: str) -> str:
    return make_url(url).set(port=proxy.port).render_as_string(hide_password=False)


@pytest.fixture
def attacked(
    kafka_server: KafkaServer,
    tmp_path: Path,
    postgres_server: PostgresServer,
    empty_postgres_url: str,
    seed: int,
) -> Iterator[Attacked]:
    scene = Scene(
        kafka_server, tmp_path, empty_postgres_url, seed=seed, patience_s=150, settings=SETTINGS
    )
    with open_tcp_proxy(postgres_server.port) as one, open_tcp_proxy(postgres_server.port) as other:
        attacked = Attacked(scene, kafka_server, postgres_server, {"first": one, "second": other})
        try:
            yield attacked
        finally:
            attacked.end()


def _cut_off(attacked: Attacked, name: str) -> Callable[[], None]:
    """Silence the instance's connections to the database, but not to the broker; return the function that heals."""
    proxy = attacked.proxies[name]
    proxy.silence()
    return proxy.heal


def _stop(attacked: Attacked, name: str) -> Callable[[], None]:
    """Stop the instance's process with SIGSTOP; return the function that sends SIGCONT."""
    process = psutil.Process(attacked.instances[name].pid)
    process.suspend()
    return process.resume


@pytest.mark.rule("15: an owner stops by its own clock, before another instance may begin")
@pytest.mark.soak
@pytest.mark.parametrize("attack", [_cut_off, _stop])
def test_an_owner_that_lost_its_lease_reads_nothing_for_watchers_it_does_not_know(
    attacked: Attacked, attack: Callable[[Attacked, str], Callable[[], None]]
) -> None:
    scene = attacked.scene
    attacked.start()
    scene.publish(200)
    scene.wait_until_committed()
    group = f"{scene.topic}-one"
    former = attacked.owner(group)
    assert former is not None
    heal = attack(attacked, former)
    try:
        attacked.until_owned_by_another(group, former)
        scene.declare_late()
        scene.records.wait_until(
            "SELECT count(*) FROM watcher WHERE name = 'late' AND state = 'running'"
        )
        time.sleep(1)
        scene.mark_late()
        # Only the new owner knows the watcher "late". If the previous owner still read, it would commit offsets past
        # messages that "late" has not received.
        for _ in range(10):
            scene.publish(60)
            time.sleep(0.1)
        wait_until(
            lambda: scene.records.positions().get("late", Counter()) == scene.expected()["late"],
            within_s=60,
            what="the watcher that only the new owner knows has its messages while the former is away",
            of=attacked.instances[former],
        )
    finally:
        heal()
    scene.publish(100)
    scene.check()


class Attacks:
    """The faults of a bad week, drawn from a seed. Each attack ends within half a minute."""

    def __init__(self, attacked: Attacked, rng: random.Random) -> None:
        self.attacked = attacked
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self.acts: list[Callable[[str], None]] = [
            self.silence_the_database,
            self.refuse_the_database,
            self.stop_a_process,
            self.stop_the_whole_tree,
            self.kill_an_instance,
            self.restart_an_instance,
            self.kill_a_child,
            self.restart_the_broker,
            self.restart_the_database,
            self.end_all_connections,
            self.replace_the_dag_file,
            self.rewrite_the_dag_file,
        ]

    def one(self) -> None:
        act, name = self.rng.choice(self.acts), self.rng.choice(sorted(self.attacked.instances))
        self.counts[act.__name__] += 1
        print(f"{time.strftime('%H:%M:%S')} {act.__name__} {name}", flush=True)
        act(name)

    def _wait(self, longest: float = 4 * LEASE_S) -> None:
        time.sleep(self.rng.uniform(0.1, longest))

    def silence_the_database(self, name: str) -> None:
        self.attacked.proxies[name].silence()
        self._wait()
        self.attacked.proxies[name].heal()

    def refuse_the_database(self, name: str) -> None:
        self.attacked.proxies[name].refuse()
        self._wait()
        self.attacked.proxies[name].heal()

    def stop_a_process(self, name: str) -> None:
        heal = _stop(self.attacked, name)
        self._wait()
        heal()

    def stop_the_whole_tree(self, name: str) -> None:
        instance = self.attacked.instances[name]
        tree = [psutil.Process(instance.pid), *instance.children()]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        self._wait()
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def kill_an_instance(self, name: str) -> None:
        instance = self.attacked.instances[name]
        instance.kill()
        assert instance.orphans() == []
        self._wait(2 * LEASE_S)
        instance.start()

    def restart_an_instance(self, name: str) -> None:
        instance = self.attacked.instances[name]
        assert instance.stop() == 0, instance.tail()
        assert instance.orphans() == []
        instance.start()

    def kill_a_child(self, name: str) -> None:
        if children := self.attacked.instances[name].children():
            with contextlib.suppress(psutil.NoSuchProcess):
                self.rng.choice(children).kill()

    def restart_the_broker(self, _: str) -> None:
        kafka = self.attacked.kafka
        with self.attacked.scene.not_publishing:
            self.rng.choice((kafka.stop, kafka.kill))()
            self._wait(3)
            kafka.start()

    def restart_the_database(self, _: str) -> None:
        postgres = self.attacked.postgres
        self.rng.choice((postgres.stop, postgres.kill))()
        self._wait(2 * LEASE_S)
        postgres.start()

    def end_all_connections(self, _: str) -> None:
        self.attacked.scene.records.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def replace_the_dag_file(self, _: str) -> None:
        self.attacked.scene.replace_dag_file(away_s=self.rng.uniform(0.0, 1.5))

    def rewrite_the_dag_file(self, _: str) -> None:
        self.attacked.scene.rewrite_dag_file(within_s=self.rng.uniform(0.0, 0.3))


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_an_hour_of_random_attacks_loses_and_doubles_nothing(attacked: Attacked, seed: int) -> None:
    scene = attacked.scene
    duration = float(os.environ.get("TRIGGERER_ATTACK_S") or 3600)
    attacked.start()
    ends = time.monotonic() + duration
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.wait(0.2):
            with scene.not_publishing:
                scene.publish(MESSAGES_PER_S // 5)

    publisher = threading.Thread(target=publish, name="publisher")
    publisher.start()
    attacks = Attacks(attacked, random.Random(seed))
    try:
        while time.monotonic() < ends and publisher.is_alive():
            attacks.one()
            time.sleep(attacks.rng.uniform(0.5, 5))
    finally:
        is_over.set()
        publisher.join()
    assert time.monotonic() >= ends, "the publisher failed"
    print(dict(attacks.counts))
    # Two causes excuse a failed run (docs/reference/failures.md): its worker was killed, or three of its attempts ended
    # with the death of their executor.
    scene.check(excused=["signal 9", "SIGKILL", "given up after"])
    for instance in attacked.instances.values():
        assert instance.stop() == 0, instance.tail()
        assert instance.orphans() == []
