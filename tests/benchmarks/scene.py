"""The servers that a benchmark needs: one Kafka broker, and an empty database for each measurement."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from tests.benchmarks.load import PARTITIONS
from tests.benchmarks.report import Report
from tests.benchmarks.service import Service
from tests.services.brokers.kafka import KafkaServer, open_kafka
from tests.services.databases.postgres import PostgresServer, open_postgres

Store = Literal["sqlite", "postgresql"]
_numbers = count(1)


@dataclass(slots=True)
class Scene:
    """The servers and folders of a benchmark. A server starts at its first use and stops at the scene's end."""

    folder: Path
    report: Report
    stores: Sequence[Store]
    quick: bool
    _stack: ExitStack
    _kafka: KafkaServer | None = None
    _postgres: PostgresServer | None = None

    @property
    def kafka(self) -> KafkaServer:
        if self._kafka is None:
            self.report.say("starting Apache Kafka")
            self._kafka = self._stack.enter_context(open_kafka(heap="512m"))
        return self._kafka

    @property
    def postgres(self) -> PostgresServer:
        if self._postgres is None:
            self.report.say("starting PostgreSQL")
            self._postgres = self._stack.enter_context(open_postgres())
        return self._postgres

    def new_folder(self, name: str) -> Path:
        folder = self.folder / f"{next(_numbers)}-{name}"
        folder.mkdir()
        return folder

    def new_database(self, store: Store) -> str:
        """Create an empty database on a disk, with its syncs on, and return its URL."""
        if store == "sqlite":
            return f"sqlite:///{self.new_folder('database') / 'triggerer.db'}"
        return self.postgres.create_database(f"bench_{next(_numbers)}")

    def new_topic(self) -> str:
        topic = f"bench-{next(_numbers)}"
        self.kafka.create_topic(topic, PARTITIONS)
        return topic

    @contextmanager
    def service(
        self,
        dag_file: str,
        store: Store,
        *,
        url: str | None = None,
        settings: str = "",
        tree: Path | None = None,
    ) -> Iterator[Service]:
        """Yield a service that is not started yet. A service that still runs at the end is killed.

        Args:
            url: The database's URL. None: a new database of the kind `store`.
            tree: The checkout that the service runs from. None: this checkout.
        """
        service = Service(
            self.new_folder("service"),
            dag_file=dag_file,
            url=url or self.new_database(store),
            bootstrap=self.kafka.bootstrap_servers,
            settings=settings,
            tree=tree,
        )
        try:
            yield service
        finally:
            service.kill()


@contextmanager
def open_scene(report: Report, stores: Sequence[Store], *, quick: bool) -> Iterator[Scene]:
    """Yield a scene with a folder of its own. At the end the servers stop and the folder is removed."""
    with tempfile.TemporaryDirectory(prefix="triggerer-bench-") as folder, ExitStack() as stack:
        yield Scene(Path(folder), report, stores, quick, stack)
