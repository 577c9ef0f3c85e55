"""No database and no log contains a password, key or token of a broker, even if the broker's errors repeat it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.commands import run_command
from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records
from tests.brokers.http.server import Asked, Reply, serving
from tests.brokers.pubsub.test_credentials import serving_tokens
from tests.services.availability import service, skip_or_fail
from tests.services.brokers.elasticmq import ElasticMqServer
from tests.services.brokers.kafka_secure import PASSWORD, SecureKafka, open_secure_kafka
from tests.services.brokers.pubsub_double import open_pubsub_double
from tests.services.brokers.servicebus.claims import KEY
from tests.services.brokers.servicebus.service import ServiceBusServer, connection_string
from tests.services.certificates import Authority
from tests.services.process import ServiceUnavailable

WATCHERS = """
from triggerer import DAG, Asset, AssetWatcher
from watchers.http import HttpPollTrigger
from watchers.messaging import MessageQueueTrigger

triggers = {
    "kafka": MessageQueueTrigger("kafka:///secrets"),
    "kafka-refused": MessageQueueTrigger("kafka:///secrets?connection=kafka2"),
    "sqs": MessageQueueTrigger("sqs:///secrets"),
    "pubsub": MessageQueueTrigger("pubsub:///secrets"),
    "pubsub-refused": MessageQueueTrigger("pubsub:///secrets?connection=pubsub2"),
    "servicebus": MessageQueueTrigger("servicebus:///secrets"),
    "servicebus-refused": MessageQueueTrigger("servicebus:///secrets?connection=servicebus2"),
    "http": HttpPollTrigger("orders", poke_interval=0.2),
    "http-refused": HttpPollTrigger("orders", poke_interval=0.2, connection="http2"),
}
assets = [
    Asset(f"x-{name}", name=name, watchers=[AssetWatcher("w", trigger)])
    for name, trigger in triggers.items()
]

with DAG("never", schedule=assets):
    pass
"""
WORKING = {"kafka", "sqs", "pubsub", "servicebus", "http"}
REFUSED = {"kafka-refused", "pubsub-refused", "servicebus-refused", "http-refused"}

WRONG = "wr0ng-passw0rd-of-kafka"
WRONG_KEY = "d3Jvbmcta2V5LW9mLXNlcnZpY2VidXM="
SQS_KEY, SESSION = "sqs+secret/access-key", "sqs-session-token=="
TOKEN, HEADER, PARAM = "http-t0ken-hunter", "http-header-hunter", "http-param-hunter"
PUBSUB_TOKEN = "pubsub-access-t0ken"


@pytest.fixture
def secure_kafka() -> Iterator[SecureKafka]:
    with service(open_secure_kafka()) as server:
        yield server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    try:
        return Authority(tmp_path / "authority")
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


def section(connection: str, **values: str) -> str:
    lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
    return "\n".join((f"[connections.{connection}]", *lines, ""))


@pytest.mark.soak
def test_no_secret_of_a_broker_is_in_the_database_or_in_a_log(
    secure_kafka: SecureKafka,
    elasticmq: ElasticMqServer,
    servicebus_server: ServiceBusServer,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secure_kafka.create_topic("secrets")
    elasticmq.create_queue("secrets")
    servicebus_server.create("secrets")
    certificate, key, private = (tmp_path / f"{name}.key" for name in ("cert", "tls", "account"))
    authority.issue(certificate, key, days=2)
    authority.issue(tmp_path / "account.crt", private, days=2)

    def answer(asked: Asked) -> Reply | None:
        if asked.headers.get("Authorization") != f"Bearer {TOKEN}":
            # Some servers repeat the request's headers in their errors.
            said = f"refused: {asked.headers.get('Authorization')} {asked.headers.get('X-Key')}"
            return Reply(401, said.encode(), {"WWW-Authenticate": said})
        return None

    with (
        serving() as http,
        serving_tokens() as tokens,
        open_pubsub_double(tls=(certificate, key)) as pubsub,
    ):
        http.answer = answer
        tokens.current = PUBSUB_TOKEN
        pubsub.create("secrets")
        pubsub.tokens = {PUBSUB_TOKEN}
        account = {
            "type": "service_account", "project_id": "tests", "private_key_id": "1",
            "private_key": private.read_text(), "client_email": "triggerer@tests.example",
            "token_uri": tokens.url,
        }  # fmt: skip
        (tmp_path / "account.json").write_text(json.dumps(account))
        (tmp_path / "other.json").write_text(json.dumps(account | {"token_uri": http.url}))
        (tmp_path / "sqs-key").write_text(SQS_KEY + "\n")
        scram = secure_kafka.with_scram("SCRAM-SHA-256")
        host = f"localhost:{pubsub.tls_port}"
        instance = Instance(
            tmp_path / "home",
            dags_folder=tmp_path / "dags",
            database_url=f"sqlite:///{tmp_path / 'triggerer.db'}",
            bootstrap="",
        )
        instance.config.write_text(
            f'[core]\nhome = "{instance.home}"\ndags_folder = "{tmp_path / "dags"}"\nlog_level = "debug"\n'
            f'[database]\nurl = "sqlite:///{tmp_path / "triggerer.db"}"\n'
            + section("kafka", **scram)
            + section("kafka2", **scram | {"sasl_password": "env:KAFKA_WRONG"})
            + section(
                "sqs", region="us-east-1", endpoint_url=elasticmq.endpoint, access_key_id="test",
                secret_access_key=f"file:{tmp_path / 'sqs-key'}", session_token=SESSION,
            )
            + section("pubsub", endpoint=host, credentials_file=str(tmp_path / "account.json"))
            + section("pubsub2", endpoint=host, credentials_file=str(tmp_path / "other.json"))
            + section("servicebus", connection_string="env:SERVICEBUS")
            + section(
                "servicebus2",
                connection_string=connection_string(servicebus_server.port, key=WRONG_KEY),
            )
            + section("http", base_url=f"{http.url}/", token=TOKEN)
            + 'params = { appid = "env:HTTP_PARAM" }\n'
            + section("http2", base_url=f"{http.url}/")
            + f'headers = {{ Authorization = "Bearer {HEADER}", X-Key = "env:HTTP_KEY" }}\n'
        )  # fmt: skip
        for name, value in {
            "KAFKA_WRONG": WRONG,
            "SERVICEBUS": servicebus_server.connection_string,
            "HTTP_KEY": HEADER[::-1],
            "HTTP_PARAM": PARAM,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.file),
            "NO_PROXY": "localhost,127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "dags").mkdir()
        (tmp_path / "dags" / "watching.py").write_text(WATCHERS)

        secure_kafka.produce("secrets", ["{}"])
        elasticmq.send(elasticmq.create_queue("secrets"), ["{}"])
        servicebus_server.send("secrets", ["{}"])
        pubsub.publish("secrets", ["{}"])
        http.document = {"n": 1}
        records = Records(f"sqlite:///{tmp_path / 'triggerer.db'}")
        instance.start()
        try:
            wait_until(
                lambda: records.holds(f"SELECT count(*) = {len(WORKING)} FROM asset_event"),
                within_s=120, what="an event of each", of=instance,
            )  # fmt: skip

            def failing() -> set[str]:
                rows = json.loads(instance.cli("watchers", "list", "--state", "failing", "--json"))
                return {row["asset_name"] for row in rows}

            wait_until(
                lambda: failing() == REFUSED,
                within_s=120, what="the others are refused", of=instance, every_s=1.0,
            )  # fmt: skip
            said = [
                run_command(*arguments, "--config", str(instance.config))
                for arguments in (
                    ("watchers", "list"),
                    ("watchers", "list", "--json", "--lag"),
                    *(("watchers", "show", name, "w", "--json") for name in sorted(REFUSED)),
                    ("assets", "events", "--json"),
                    ("config", "show"),
                    ("check",),
                )
            ]
        finally:
            instance.stop()
    shown = {
        path.name: path.read_bytes().decode(errors="replace")
        for path in tmp_path.glob("triggerer.db*")
    }
    shown |= {path.name: path.read_text(errors="replace") for path in instance.home.glob("*.log")}
    shown |= {" ".join(map(str, one.args)): one.stdout + one.stderr for one in said}
    key_lines = [line for line in private.read_text().splitlines() if "-----" not in line]
    secrets = (
        PASSWORD, WRONG, SQS_KEY, SESSION, KEY, WRONG_KEY, TOKEN, HEADER, HEADER[::-1], PARAM, PUBSUB_TOKEN, *key_lines,
    )  # fmt: skip
    found = [
        (where, secret) for where, text in shown.items() for secret in secrets if secret in text
    ]
    assert found == []
    assert '"started"' in shown["service.log"]
