"""Fixtures for all tests: real servers, databases on them, and checks that a test leaves nothing behind."""

import asyncio
import gc
import inspect
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import settings

from tests.rules.page import TestsByRule, tests_by_rule
from tests.services.availability import keep_logs, restart_stopped, service, skip_or_fail
from tests.services.brokers.elasticmq import ElasticMqServer, open_elasticmq
from tests.services.brokers.kafka import KafkaServer, open_kafka
from tests.services.brokers.servicebus import ServiceBusServer, open_servicebus
from tests.services.clusters.spark import TrainedHome, train_home
from tests.services.clusters.spark_cluster import SparkCluster, open_spark_cluster
from tests.services.clusters.spark_jars import SparkJars, find_spark_jars
from tests.services.databases import stores
from tests.services.databases.database_pool import database_pool
from tests.services.databases.postgres import PostgresServer, open_postgres
from tests.services.databases.stores import create_migrated_file
from tests.services.process import ServiceUnavailable
from tests.tiers import is_quick
from triggerer.config import CONFIG_VARIABLE
from triggerer.observability.redaction import forget_secrets

if TYPE_CHECKING:
    from tests.services.brokers.pubsub import PubSubServer

# On a busy machine, Hypothesis' deadline for an example would fail good tests.
settings.register_profile("triggerer", deadline=None)
settings.load_profile("triggerer")
# Tests run side by side, so each service must listen on a free port.
os.environ.setdefault("TRIGGERER__API__PORT", "0")

TESTS_BY_RULE = pytest.StashKey[TestsByRule]()
COLLECTED = pytest.StashKey[frozenset[Path]]()
"""The modules with collected tests, before `-m` and `-k` deselect some."""
_SERVERS = {
    "postgres_server",
    "durable_postgres_server",
    "kafka_server",
    "pubsub_server",
    "elasticmq",
    "servicebus_server",
    "spark_cluster",
}


def pytest_collection() -> None:
    # pytest keeps all objects that it creates here, so there is no garbage. Looking for garbage would take a third of
    # the time.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_known_secrets() -> Iterator[None]:
    """Forget the secrets of a test. Otherwise the logs of the next test would hide plain words such as "triggerer"."""
    yield
    forget_secrets()


@pytest.fixture(scope="session", autouse=True)
def _loggers_are_not_cached() -> Iterator[None]:
    """Cache no loggers, because `capture_logs` misses a logger that was cached under an earlier configuration."""
    configure = structlog.configure
    structlog.configure = partial(_configure_without_cache, configure)
    yield
    structlog.configure = configure


def _configure_without_cache(configure: Callable[..., None], **options: Any) -> None:
    configure(**options | {"cache_logger_on_first_use": False})


@pytest.fixture(autouse=True)
def _no_handlers_of_others() -> Iterator[None]:
    """Remove the handlers that a test added to the root logger. Otherwise they would get the logs of later tests."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)


@pytest.fixture(autouse=True)
def _no_known_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the configuration that `get_connection` read for an earlier test, and the variable that names its file."""
    monkeypatch.setattr("triggerer.abc._resolve_connection", None)
    # After `setenv`, pytest also removes a value that the test itself sets.
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    monkeypatch.delenv(CONFIG_VARIABLE)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the session. It is not durable, so a test may stop it, but not kill it.

    A test that stops the server need not start it again: `DatabasePool` starts it.
    """
    with service(open_postgres(durable=False)) as server:
        yield server


@pytest.fixture(scope="session")
def durable_postgres_server() -> Iterator[PostgresServer]:
    """A second PostgreSQL server for the session. It is durable, so a test may kill it.

    A module whose tests kill the server overrides `postgres_server` with this fixture.
    """
    with service(open_postgres()) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """One Kafka broker for the session. A test must use its own names of topics and groups."""
    with service(open_kafka()) as server:
        yield server


@pytest.fixture(scope="session")
def pubsub_server() -> "Iterator[PubSubServer]":
    """One Pub/Sub server for the session. A test must use its own names of topics."""
    # Imported only here, because the client takes half a second to import.
    from tests.services.brokers.pubsub import open_pubsub

    with service(open_pubsub()) as server:
        yield server


@pytest.fixture(scope="session")
def elasticmq() -> Iterator[ElasticMqServer]:
    """One ElasticMQ server for the session. A stop loses all messages. A test must use its own names of queues."""
    with service(open_elasticmq()) as server:
        yield server


@pytest.fixture(scope="session")
def servicebus_server() -> Iterator[ServiceBusServer]:
    """One test Service Bus for the session. A test must use its own names of entities."""
    with service(open_servicebus()) as server:
        yield server


@pytest.fixture(scope="session")
def trained_home(tmp_path_factory: pytest.TempPathFactory) -> TrainedHome:
    """A home with an archive of Spark's classes, made once for all pytest workers of the session."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    try:
        return train_home(shared)
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


@pytest.fixture(scope="session", autouse=True)
def _train_early(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make the archive of Spark's classes while other tests run, so that pytest's workers need not wait for it.

    A failure is reported by the first test that needs the archive.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw0":
        return
    if any("trained_home" in getattr(test, "fixturenames", ()) for test in request.session.items):
        shared = tmp_path_factory.getbasetemp().parent

        def train() -> None:
            # pytest would report an error of this thread as an error of the test that runs at that moment. The first
            # test that needs the archive makes it again.
            with suppress(Exception):
                train_home(shared)

        Thread(target=train, name="train early", daemon=True).start()


@pytest.fixture(scope="session")
def spark_jars() -> SparkJars:
    """Jars for Spark's Kafka source, Delta, Iceberg and PostgreSQL; a test skips or fails if Maven cannot get them."""
    try:
        return find_spark_jars()
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """One standalone cluster for the session: a master, and a worker with 2 cores."""
    with service(open_spark_cluster()) as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """SQLAlchemy's URL of a PostgreSQL database that only this test uses. It has tables, but no rows."""
    with database_pool(postgres_server).database() as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """SQLAlchemy's URL of a PostgreSQL database without tables, which only this test uses."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres_server.create_database(name)
    postgres_server.start()
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def _templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def sqlite_url(tmp_path: Path, _templates: Path) -> str:
    """SQLAlchemy's URL of a SQLite file that only this test uses. It has tables, but no rows."""
    return create_migrated_file(tmp_path / "triggerer.sqlite", _templates)


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """SQLAlchemy's URL of a SQLite file that does not exist yet."""
    return stores.sqlite_url(tmp_path / "triggerer.sqlite")


_EACH_DATABASE = [
    "sqlite",
    pytest.param("postgresql", marks=[pytest.mark.services, pytest.mark.postgresql]),
]


@pytest.fixture(params=_EACH_DATABASE)
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database with tables and without rows. The test runs once on SQLite, and once on PostgreSQL."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


@pytest.fixture(params=_EACH_DATABASE)
def empty_store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database without tables. The test runs once on SQLite, and once on PostgreSQL."""
    fixture = {"sqlite": "empty_sqlite_url", "postgresql": "empty_postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


def pytest_configure() -> None:
    """Let Ctrl-C interrupt pytest and its children, even if the shell lets it be ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Add the marks `full` and `services`, put long tests first, and note which tests check each rule."""
    # Collect the rules and the modules before `-m` and `-k` leave some tests out.
    config.stash[TESTS_BY_RULE] = tests_by_rule(items)
    config.stash[COLLECTED] = frozenset(item.path for item in items)
    for item in items:
        if isinstance(item, pytest.Function) and not is_quick(item):
            item.add_marker(pytest.mark.full)
        if _SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)
    yield
    worker_input = getattr(config, "workerinput", {"workercount": 1})
    items[:] = _long_first(items, worker_input["workercount"])


def _long_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Put long tests at the beginning of each worker's share. xdist divides the list into equal, consecutive shares."""
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    ordered = []
    for worker in range(workers):
        first, last = (n * len(items) // workers for n in (worker, worker + 1))
        mine = long[worker::workers]
        ordered += [*mine, *others[: last - first - len(mine)]]
        del others[: last - first - len(mine)]
    return [*ordered, *others]


def pytest_runtest_setup() -> None:
    """Restart the servers that the previous test has stopped."""
    restart_stopped()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the servers' logs to the report of a failed test that needs servers."""
    report = yield
    if report.failed and item.get_closest_marker("services"):
        report.sections.extend(keep_logs())
    return report


@pytest.fixture(autouse=True)
def _tasks_end_with_their_test(request: pytest.FixtureRequest) -> None:
    # Only async tests have an event loop. pytest ends fixtures in reverse order. So `_no_task_is_left` must be set up
    # first, to search for tasks after the other fixtures have ended.
    if isinstance(request.node, pytest.Function) and inspect.iscoroutinefunction(request.node.obj):
        request.getfixturevalue("_no_task_is_left")


@pytest.fixture
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    for _ in range(5):  # a few turns of the loop, for tasks that are about to end
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        names = "\n".join(f"  {task.get_name()}: {task.get_coro()!r}" for task in left)
        pytest.fail(f"the test left {len(left)} tasks behind:\n{names}", pytrace=False)
