"""A service whose watchers read one Kafka topic. A file controls some of them."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.brokers.kafka import KafkaServer

# A DAG file. Format it with the classes, the topic, and the class of each asset name.
WATCHERS = """
from pathlib import Path
import anyio
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

class Ours(KafkaEventTrigger):
    def serialize(self):
        return f"{{__name__}}.{{type(self).__name__}}", super().serialize()[1]

{classes}

assets = [
    Asset(f"x-test://{{name}}", watchers=[AssetWatcher("w", cls("{topic}"))])
    for name, cls in dict({names}).items()
]

with DAG("on_all", schedule=assets, is_paused_upon_creation=True):

    @task
    def count(triggering_asset_events):
        return len(triggering_asset_events)

    count()
"""
COUNTS = (
    "SELECT a.name, count(*), count(DISTINCT e.idempotency_key) FROM asset_event e"
    " JOIN asset a ON a.id = e.asset_id GROUP BY a.name"
)


class WatchingScene:
    """A topic of its own and a service that is not started yet.

    Args:
        topic: The first part of the topic's name.
        classes: The code of the trigger classes, which inherit from `Ours`.
        names: Asset name -> name of the trigger class of the asset's watcher.
        settings: More of the service's configuration, in TOML.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        kafka: KafkaServer,
        topic: str,
        *,
        partitions: int,
        classes: str,
        names: dict[str, str],
        settings: str = "",
    ) -> None:
        self.kafka = kafka
        self.topic = f"{topic}-{url.partition(':')[0].partition('+')[0]}"
        kafka.create_topic(self.topic, partitions=partitions)
        dags = folder / "dags"
        dags.mkdir()
        by_name = ", ".join(f"{name}={cls}" for name, cls in names.items())
        (dags / "watching.py").write_text(
            WATCHERS.format(classes=classes, topic=self.topic, names=by_name)
        )
        self._watchers = len(names)
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=dags,
            database_url=url,
            bootstrap=kafka.bootstrap_servers,
            settings=settings,
        )

    def start(self) -> None:
        """Start the service, and wait until all watchers run."""
        self.instance.start()
        running = f"SELECT count(*) = {self._watchers} FROM watcher WHERE state = 'running'"
        wait_until(
            lambda: self.records.holds(running),
            within_s=60,
            what=f"{self._watchers} watchers run",
            of=self.instance,
        )

    def kill(self) -> None:
        """Kill the service at the end of a test, if it still runs."""
        if self.instance.is_running:
            self.instance.kill()

    def produce(self, number: int) -> None:
        self.kafka.produce(self.topic, [str(value) for value in range(number)])

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return, by asset, the number of events and the number of their different keys."""
        return {
            name.removeprefix("x-test://"): (events, keys)
            for name, events, keys in self.records.rows(COUNTS)
        }

    def until_counted(self, within_s: float = 120, **wanted: int) -> None:
        """Wait until these assets have this number of events, each from a different message."""
        wait_until(
            lambda: all(self.counts().get(name) == (n, n) for name, n in wanted.items()),
            within_s=within_s,
            what=f"{wanted}, not {self.counts()}",
            of=self.instance,
        )
