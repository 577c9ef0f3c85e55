"""The guarantee that a watcher asks for, on each broker: checked at the start, and when the watcher's file changes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import run_command
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.services.brokers.elasticmq import ElasticMqServer
from tests.services.brokers.kafka import KafkaServer
from tests.services.brokers.pubsub_admin import PROJECT
from tests.services.brokers.servicebus import ServiceBusServer

DAGS = """
import dataclasses

from triggerer import Asset, AssetWatcher
from watchers.{module} import {base}


class Weak({base}):
    \"\"\"After a restart, the sender numbers the messages from the start again.\"\"\"

    def serialize(self):
        return f"{{__name__}}.Weak", super().serialize()[1]

    async def describe_delivery(self, *, ask):
        facts = await super().describe_delivery(ask=ask)
        return dataclasses.replace(facts, key_changes="a restarted sender reuses its numbers")


def watched(name, trigger, guarantee):
    return Asset(name=name, uri=f"x-promise://{{name}}", watchers=[
        AssetWatcher(name, trigger, guarantee=guarantee)])


strict = watched("strict", {strict}("{source}", extra={{"n": "n"}}), {guarantee!r})
plain = watched("plain", {base}("{source}", extra={{"n": "n"}}), None)
"""


@dataclass
class Broker:
    """A topic or queue of one broker, with settings that `check` warns about.

    Attributes:
        connection: The broker's `[connections.…]` section, in TOML.
        warns: Texts that the warnings of `check` must contain.
    """

    module: str
    base: str
    source: str
    connection: str
    send: Callable[[Sequence[str]], object]
    warns: Sequence[str]


def on_kafka(request: pytest.FixtureRequest, name: str) -> Broker:
    server: KafkaServer = request.getfixturevalue("kafka_server")
    server.create_topic(name, retention_ms="60000", cleanup_policy="compact,delete")
    return Broker(
        "kafka",
        "KafkaEventTrigger",
        name,
        f'[connections.kafka]\nbootstrap_servers = "{server.bootstrap_servers}"\n',
        lambda bodies: server.produce(name, bodies, key="k"),
        ["keeps a message for 0:01:00, and a watcher has 0:05:00", "is compacted"],
    )


def on_sqs(request: pytest.FixtureRequest, name: str) -> Broker:
    server: ElasticMqServer = request.getfixturevalue("elasticmq")
    url = server.create_queue(name, visibility_s=5)
    settings = "".join(f'{key} = "{value}"\n' for key, value in server.connection.items())
    return Broker(
        "sqs",
        "SqsEventTrigger",
        name,
        f"[connections.sqs]\n{settings}receive_wait_s = 1\n",
        lambda bodies: server.send(url, bodies),
        ["no place for dead letters: a message that fails every time is delivered again"],
    )


def on_pubsub(request: pytest.FixtureRequest, name: str) -> Broker:
    server = request.getfixturevalue("pubsub_server")
    server.create(name)
    return Broker(
        "pubsub",
        "PubSubEventTrigger",
        name,
        f'[connections.pubsub]\nproject = "{PROJECT}"\nemulator_host = "{server.host}"\n'
        "ack_deadline_s = 10\nmax_extension_s = 60\n",
        lambda bodies: server.publish(name, bodies),
        ["wait for 0:01:00 at most, and a watcher has 0:05:00"],
    )


def on_servicebus(request: pytest.FixtureRequest, name: str) -> Broker:
    server: ServiceBusServer = request.getfixturevalue("servicebus_server")
    server.create(name, lock_s=2.0)
    return Broker(
        "servicebus",
        "ServiceBusEventTrigger",
        name,
        f'[connections.servicebus]\nconnection_string = "{server.connection_string}"\n',
        lambda bodies: server.send(name, bodies),
        # No warnings, because this server has no management API. tests/brokers/servicebus/test_guarantees.py has one.
        [],
    )


class Scene:
    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.dags = folder / "dags"
        self.dags.mkdir()
        url = f"sqlite:///{folder / 'triggerer.db'}"
        self.records = Records(url)
        self.instance = Instance(
            folder / "home",
            dags_folder=self.dags,
            database_url=url,
            bootstrap="127.0.0.1:9",
            settings="[dag_processor]\nmin_file_process_interval = 0.5\n",
        )
        config = self.instance.config.read_text().split("[connections.kafka]")
        settings = config[1].split("[dag_processor]")[1]
        self.instance.config.write_text(f"{config[0]}[dag_processor]{settings}{broker.connection}")

    def declare(self, guarantee: str | None, *, weak: bool) -> None:
        broker = self.broker
        (self.dags / "promises.py").write_text(
            DAGS.format(
                module=broker.module,
                base=broker.base,
                strict="Weak" if weak else broker.base,
                source=broker.source,
                guarantee=guarantee,
            )
        )

    def check(self) -> tuple[int, str]:
        done = run_command("check", "--config", str(self.instance.config))
        return done.returncode, done.stdout + done.stderr

    def watchers(self) -> dict[str, dict[str, Any]]:
        if not self.records.holds("SELECT 1 + count(*) FROM watcher"):
            return {}
        found = json.loads(self.instance.cli("watchers", "list", "--json"))
        return {one["name"]: one for one in found}

    def until_shown(self, guarantee: str | None, states: Sequence[str], error: str | None) -> None:
        """Wait until the strict watcher is in one of these states with this error, and the plain watcher runs."""

        def is_so() -> bool:
            found = self.watchers()
            if found.keys() != {"strict", "plain"} or found["plain"]["state"] != "running":
                return False
            strict = found["strict"]
            said = strict["error"]
            return (
                strict["guarantee"] == guarantee
                and strict["state"] in states
                and (said is None if error is None else error in (said or ""))
            )

        what = f"strict asks for {guarantee}, is {states}, and says {error!r}"
        wait_until(is_so, within_s=90, what=what, of=self.instance)

    def numbers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"strict": [], "plain": []}
        for name, extra in self.records.rows(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
        ):
            found[name].append(json.loads(extra)["n"])
        return {name: sorted(numbers) for name, numbers in found.items()}

    def send(self, *numbers: int) -> None:
        self.broker.send([json.dumps({"n": n}) for n in numbers])

    def until_numbers(self, **expected: list[int]) -> None:
        wait_until(
            lambda: self.numbers() == expected, within_s=60, what=str(expected), of=self.instance
        )


@pytest.fixture(
    params=[
        on_kafka,
        pytest.param(on_sqs, marks=pytest.mark.soak),
        pytest.param(on_pubsub, marks=pytest.mark.soak),
        pytest.param(on_servicebus, marks=pytest.mark.soak),
    ]
)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(request.param(request, f"g-{uuid.uuid4().hex[:10]}"), tmp_path)
    yield scene
    if scene.instance.is_running:
        scene.instance.kill()


@pytest.mark.long
def test_one_promised_less_than_it_asks_for_is_refused_at_the_start_and_later_and_misses_nothing(
    scene: Scene,
) -> None:
    says = "it asks for effectively once, and its trigger promises at least once"
    scene.declare("effectively_once", weak=True)
    code, said = scene.check()
    assert code == 1
    assert says in said
    assert "a restarted sender reuses its numbers" in said

    scene.instance.start()
    scene.until_shown("effectively_once", ["failing"], says)
    scene.send(1)
    scene.until_numbers(strict=[], plain=[1])

    # The watcher now requires less: it starts without help, and receives the messages that it missed.
    scene.declare("at_least_once", weak=True)
    scene.until_shown("at_least_once", ["running"], None)
    scene.until_numbers(strict=[1], plain=[1])
    scene.send(2)
    scene.until_numbers(strict=[1, 2], plain=[1, 2])

    # While the service runs, the watcher asks for more than it is promised.
    scene.declare("effectively_once", weak=True)
    scene.until_shown("effectively_once", ["failing"], says)
    scene.send(3)
    scene.until_numbers(strict=[1, 2], plain=[1, 2, 3])

    # Remove the cause that the error names.
    scene.declare("effectively_once", weak=False)
    scene.until_shown("effectively_once", ["running"], None)
    scene.until_numbers(strict=[1, 2, 3], plain=[1, 2, 3])
    scene.send(4)
    scene.until_numbers(strict=[1, 2, 3, 4], plain=[1, 2, 3, 4])
    assert scene.instance.stop() == 0


@pytest.mark.soak
def test_settings_of_a_source_that_cost_no_promise_are_warned_of_and_refuse_no_start(
    scene: Scene,
) -> None:
    """A source without a dead-letter queue keeps its guarantee. So does a source whose locks or whose retention are
    shorter than the ack timeout.
    """
    scene.declare("effectively_once", weak=False)
    code, said = scene.check()
    assert code == 0, said
    assert "strict/strict: effectively once: " in said
    for one in scene.broker.warns:
        assert one in said
    scene.instance.start()
    scene.until_shown("effectively_once", ["running"], None)
    scene.send(1)
    scene.until_numbers(strict=[1], plain=[1])
    assert scene.instance.stop() == 0
