"""A service on a broker's queues, and the faults and checks that tests of conservation share."""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records, conservation
from tests.services.tcp_proxy import TcpProxy

# Appended to a DAG file with a list `assets`: one DAG for each asset.
ON_EACH = """
for asset in assets:
    with DAG(f"on_{asset.name}", schedule=asset):

        @task
        def count(triggering_asset_events):
            return sum(len(events) for events in triggering_asset_events.values())

        count()
"""

# Source of a trigger class. Its filter raises for a message if FAILS is true and the file TROUBLE
# exists. Replace three words: BASE by the class to inherit from, FAILS by an expression of
# `message`, and TROUBLE by a path.
FLAKY = """
from pathlib import Path


class Flaky(BASE):
    def serialize(self):
        return f"{__name__}.Flaky", super().serialize()[1]

    async def filter_shared_stream(self, shared_stream):
        async def raising():
            async for message in shared_stream:
                if FAILS and Path("TROUBLE").exists():
                    raise RuntimeError(f"trouble at {message!r}")
                yield message

        async for event in super().filter_shared_stream(raising()):
            yield event
"""


class BrokerScene:
    """One service on SQLite, which reaches its broker through a proxy. Subclasses bring the broker.

    Args:
        dags: Source of a DAG file that defines the list `assets`.
        connection: The broker's `[connections.…]` section, in TOML.
    """

    def __init__(
        self, proxy: TcpProxy, folder: Path, seed: int, *, dags: str, connection: str
    ) -> None:
        self.proxy = proxy
        self.random = random.Random(seed)
        self.sent = 0
        self.trouble = folder / "trouble"
        dags_folder = folder / "dags"
        dags_folder.mkdir()
        (dags_folder / "soak.py").write_text(dags.replace("TROUBLE", str(self.trouble)) + ON_EACH)
        url = f"sqlite:///{folder / 'triggerer.db'}"
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags_folder,
            database_url=url,
            bootstrap="127.0.0.1:1",
            settings=connection,
        )

    # Messages and faults

    def publish(self, count: int) -> None:
        """Send the next messages, numbered, spread over the keys that have an order."""
        by_key: dict[int, list[int]] = defaultdict(list)
        for n in range(self.sent, self.sent + count):
            by_key[self.random.randrange(5)].append(n)
        self.sent += count
        for key, numbers in by_key.items():
            self.send(key, numbers)

    @abstractmethod
    def send(self, key: int, numbers: Sequence[int]) -> None:
        """Send messages of one key, in order."""

    def kill(self) -> None:
        """Kill the service with SIGKILL, check that no child is left, and start the service again."""
        self.instance.kill()
        assert self.instance.orphans() == []
        self.instance.start()

    def cut(self) -> None:
        """Reset all connections to the broker, and refuse new ones for a while."""
        self.proxy.refuse()
        # How long the cut lasts.
        time.sleep(self.random.uniform(0.2, 2.0))
        self.proxy.heal()

    def make_trouble(self) -> None:
        """Let the flaky watchers fail for a while."""
        self.trouble.touch()
        # How long they fail.
        time.sleep(self.random.uniform(0.5, 3.0))
        self.trouble.unlink()

    def go_through(self, acts: Sequence[Callable[[], None]], *, messages: int) -> None:
        """Start the service, and perform the acts in random order, with messages before, between and after them."""
        self.publish(messages // 4)
        self.instance.start()
        for act in self.random.sample(acts, len(acts)):
            self.publish(messages // 2 // len(acts))
            # Pause for a random time, so that the act meets the service at another moment of its work in each test.
            time.sleep(self.random.uniform(0.5, 3.0))
            act()
        self.publish(messages - self.sent)

    def until(self, condition: Callable[[], bool], what: str, *, within_s: float = 120) -> None:
        wait_until(condition, within_s=within_s, what=what, of=self.instance)

    def until_all_ran(self) -> None:
        """Wait until all events are in runs that have ended."""

        def is_so() -> bool:
            now = conservation(self.records)
            return now.queued == 0 and now.active_runs == 0

        self.until(is_so, "all events are in runs that ended")

    def end(self) -> None:
        """Stop the service, and check that it ends in order and leaves no process."""
        assert self.instance.stop() == 0, self.instance.tail()
        assert self.instance.orphans() == []

    # Results

    def events(self) -> dict[str, list[dict[str, Any]]]:
        """Return each asset's events in the order of storing; empty while there are no tables."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        if not self.records.holds("SELECT 1 + count(*) FROM asset_event"):
            return found
        for name, extra in self.records.rows(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
        ):
            found[name].append(orjson.loads(extra))
        return found

    def numbers(self) -> dict[str, Counter[int]]:
        return {name: Counter(one["n"] for one in found) for name, found in self.events().items()}

    def check_numbers(self, expected: dict[str, Counter[int]]) -> None:
        """Wait until all expected events exist, and are in ended runs. Then compare the numbers in the events."""
        count = sum(map(Counter.total, expected.values()))
        self.until(
            lambda: sum(map(len, self.events().values())) >= count,
            "all events are there",
            within_s=240,
        )
        self.until_all_ran()
        assert self.numbers() == expected

    def check_order(self, asset: str, key: str) -> None:
        """Check that the numbers grow within each key."""
        by_key: dict[Any, list[int]] = defaultdict(list)
        for event in self.events()[asset]:
            by_key[event[key]].append(event["n"])
        for value, found in by_key.items():
            assert found == sorted(found), f"{asset}: {key} {value} is out of order"


AnyScene = TypeVar("AnyScene", bound=BrokerScene)


def lent(scene: AnyScene) -> Iterator[AnyScene]:
    """Yield the scene for a fixture, and kill the service afterwards if it still runs."""
    yield scene
    if scene.instance.is_running:
        scene.instance.kill()
