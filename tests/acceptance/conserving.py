"""A topic with four watchers in two streams, and the check that each watcher has exactly the right events."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from tests.acceptance.broker_scene import FLAKY, ON_EACH
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records, conservation
from tests.services.brokers.kafka_client import KafkaClient

PARTITIONS = 8

_FLAKY = FLAKY.replace("BASE", "KafkaEventTrigger").replace("FAILS", "message.offset % 211 == 7")
DAGS = f"""
# Four watchers on one topic, in two consumer groups: two streams, so that two instances can share them.
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger
{_FLAKY}

def watched(name, trigger):
    return Asset(name=name, uri=f"x-soak://{{name}}", watchers=[AssetWatcher(name, trigger)])


first, second = "TOPIC-one", "TOPIC-two"
assets = [
    watched("everything", KafkaEventTrigger("TOPIC", group_id=first)),
    watched("evens", Flaky("TOPIC", group_id=first, match=dict(parity=0))),
    watched("thirds", KafkaEventTrigger("TOPIC", group_id=second, match=dict(third=0))),
    watched("again", KafkaEventTrigger("TOPIC", group_id=second)),
]
{ON_EACH}"""

LATE = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

late = Asset(name="late", uri="x-soak://late", watchers=[
    AssetWatcher("late", KafkaEventTrigger("{topic}", group_id="{topic}-one", match={{"third": 1}}))])

with DAG("on_late", schedule=late):
    @task
    def count():
        pass
    count()
"""


class Scene:
    """One or two instances that read one topic, and the faults that a test causes.

    Args:
        patience_s: The longest wait, at the end of a test, for all events and runs.
        settings: More of the instances' configuration, in TOML.
        bootstrap: The address of Kafka that the instances use, such as a proxy. Default: the address of `kafka`.
    """

    def __init__(
        self,
        kafka: KafkaClient,
        folder: Path,
        url: str,
        *,
        seed: int,
        patience_s: float,
        settings: str = "",
        bootstrap: str | None = None,
    ) -> None:
        self.bootstrap = bootstrap or kafka.bootstrap_servers
        self.patience_s = patience_s
        self.settings = settings
        self.kafka = kafka
        self.url = url
        self.random = random.Random(seed)
        self.topic = f"soak-{seed:x}"
        self.trouble = folder / "trouble"
        self.records = Records(url)
        dags = folder / "dags"
        dags.mkdir()
        file = DAGS.replace("TROUBLE", str(self.trouble)).replace("TOPIC", self.topic)
        (dags / "soak.py").write_text(file)
        self._folder = folder
        self._dags = dags
        self.first = self.instance("first")
        self.late_from: dict[int, int] | None = None
        """By partition, the first offset that the late watcher must receive; None: no late watcher is checked."""
        self.not_publishing = threading.Lock()
        """A lock that keeps a test from publishing while an attack has stopped the broker."""
        self.sent: dict[int, list[dict[str, int]]] = {p: [] for p in range(PARTITIONS)}
        kafka.create_topic(self.topic, PARTITIONS)

    def instance(self, name: str, *, url: str | None = None) -> Instance:
        """Return an instance that is not started yet. `url` replaces the database's URL, for instance by a proxy's."""
        return Instance(
            self._folder / name,
            dags_folder=self._dags,
            database_url=url or self.url,
            bootstrap=self.bootstrap,
            settings=self.settings,
        )

    def publish(self, count: int) -> None:
        """Write the next `count` messages, spread over the partitions."""
        start = sum(map(len, self.sent.values()))
        batches: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        for n in range(start, start + count):
            message = {"n": n, "parity": n % 2, "third": n % 3}
            partition = self.random.randrange(PARTITIONS)
            self.sent[partition].append(message)
            batches[partition].append(orjson.dumps(message))
        for partition, values in batches.items():
            self.kafka.produce(self.topic, values, partition=partition)

    @contextmanager
    def publishing(self, *, every_s: float = 0.1) -> Iterator[threading.Thread]:
        """Publish 20 messages again and again, in a thread. The thread ends early if publishing fails."""
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.wait(every_s):
                self.publish(20)

        publisher = threading.Thread(target=publish, name="publisher")
        publisher.start()
        try:
            yield publisher
        finally:
            is_over.set()
            publisher.join()

    def declare_late(self) -> None:
        """Add another DAG file, with a watcher on the first stream."""
        (self._dags / "late.py").write_text(LATE.format(topic=self.topic))

    def mark_late(self) -> None:
        """From now on, the late watcher must receive every message that is published."""
        self.late_from = {partition: len(messages) for partition, messages in self.sent.items()}

    def replace_dag_file(self, *, away_s: float) -> None:
        """Delete the file, and write it again as it was."""
        path = self._dags / "soak.py"
        text = path.read_text()
        path.unlink()
        time.sleep(away_s)
        path.write_text(text)

    def rewrite_dag_file(self, *, within_s: float) -> None:
        """Empty the file, and write it again after `within_s` seconds. An empty DAG file is valid."""
        path = self._dags / "soak.py"
        text = path.read_text()
        with path.open("w") as file:
            time.sleep(within_s)
            file.write(text)

    def pause(self) -> None:
        time.sleep(self.random.uniform(0.5, 3.0))

    def kill_and_restart(self) -> None:
        self.first.kill()
        assert self.first.orphans() == []
        self.first.start()

    def expected(self) -> dict[str, Counter[tuple[int, int]]]:
        """Return, by asset, the (partition, offset) of each message that must have exactly one event."""
        wanted: dict[str, Callable[[dict[str, int]], bool]] = {
            "everything": lambda message: True,
            "again": lambda message: True,
            "evens": lambda message: message["parity"] == 0,
            "thirds": lambda message: message["third"] == 0,
        }
        found = {
            name: Counter(
                (partition, offset)
                for partition, messages in self.sent.items()
                for offset, message in enumerate(messages)
                if matches(message)
            )
            for name, matches in wanted.items()
        }
        if self.late_from is not None:
            found["late"] = Counter(
                (partition, offset)
                for partition, messages in self.sent.items()
                for offset, message in enumerate(messages)
                if message["third"] == 1 and offset >= self.late_from[partition]
            )
        return found

    def wait_until_committed(self) -> dict[int, int]:
        """Wait until both groups have committed everything; return the ends of the partitions."""
        groups = [f"{self.topic}-one", f"{self.topic}-two"]
        ends = {p: len(messages) for p, messages in self.sent.items()}
        assert self.kafka.end_offsets(self.topic) == ends
        for group in groups:
            wait_until(
                lambda group=group: self.kafka.committed_offsets(group, self.topic) == ends,  # type: ignore[misc]
                within_s=self.patience_s,
                what=f"{group} has committed everything",
                of=self.first,
                every_s=1.0,
            )
        return ends

    def check(self, excused: Sequence[str] = ()) -> None:
        """Wait until all messages have events, and all runs have ended. Check that no event is missing or doubled.

        Args:
            excused: A run may fail if its error contains one of these texts.
        """
        ends = self.wait_until_committed()
        expected = self.expected()
        total = sum(counter.total() for counter in expected.values())
        # The broker's position may be past messages that a watcher has yet to catch up with.
        self._wait_for(
            lambda: self._count("asset_event") + self._count("parked_message") >= total,
            "everything is an event, or set aside",
        )
        if self._count("parked_message"):
            # The trouble made a watcher fail messages until they were parked. Replay the parked messages.
            self.first.cli("watchers", "parked", "replay", "--all")
        self._wait_for(lambda: self._count("asset_event") >= total, f"{total} asset events")
        assert self.records.positions() == expected, _difference(self.records.positions(), expected)
        self._wait_for(
            lambda: (now := conservation(self.records)).queued == 0 and now.active_runs == 0,
            "all events are in runs that ended",
        )
        counts = conservation(self.records)
        print(f"{total} asset events of {sum(ends.values())} messages: {counts}")
        failed = self.records.rows(
            "SELECT dag_id, run_id, state, attempt, error FROM dag_run WHERE state <> 'success'"
        )
        unexcused = [run for run in failed if not any(text in f"{run[-1]}" for text in excused)]
        assert not unexcused, unexcused
        assert (counts.events, counts.taken) == (total, total), counts

    def _count(self, table: str) -> int:
        count = self.records.value(f"SELECT count(*) FROM {table}")
        assert isinstance(count, int)
        return count

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, within_s=self.patience_s, what=what, of=self.first, every_s=1.0)


def _difference(
    found: dict[str, Counter[tuple[int, int]]], expected: dict[str, Counter[tuple[int, int]]]
) -> str:
    """Return the missing and the surplus events by asset."""
    return ", ".join(
        f"{name}: {found.get(name, Counter())[at]} instead of {expected.get(name, Counter())[at]} of {at}"
        for name in sorted({*found, *expected})
        for at in sorted({*found.get(name, ()), *expected.get(name, ())})
        if found.get(name, Counter())[at] != expected.get(name, Counter())[at]
    )[:4000]
