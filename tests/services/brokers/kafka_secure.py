"""An Apache Kafka broker that authenticates its clients: by TLS certificates, SCRAM, PLAIN and OAUTHBEARER."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.services.brokers.kafka import broker_settings, format_broker, kafka_with_archive
from tests.services.brokers.kafka_client import KafkaClient
from tests.services.certificates import Authority
from tests.services.process import accepts_connections, free_ports, running, temporary_home

USER, PASSWORD = "reader", "its-password"
STRANGER = "stranger"
"""A user with the password of `USER`, but without rights."""
_LOGIN = "org.apache.kafka.common.security"


@contextmanager
def open_secure_kafka() -> Iterator["SecureKafka"]:
    """Start a broker with a listener for each kind of login, and one without login for the test's own use.

    Raises:
        ServiceUnavailable: There is no Java 17 or no openssl, or Kafka is not cached and cannot be downloaded.
    """
    with temporary_home("kafka") as home:
        server = SecureKafka(home)
        with running(server.daemon):
            yield server


class SecureKafka(KafkaClient):
    """A broker with a listener for each kind of login.

    Attributes:
        authority: The file of the certificate that clients trust.
        certificate, key: The file of a client's certificate, issued by the authority, and the file
            of its private key.
    """

    def __init__(self, home: Path) -> None:
        port, controller, self._tls, self._scram, self._plain, self._oauth = free_ports(6)
        super().__init__(f"127.0.0.1:{port}", replicas=1)
        self._port = port
        authority = Authority(home / "certificates")
        self.authority = authority.file
        self.certificate, self.key = home / "client.crt", home / "client.key"
        authority.issue(self.certificate, self.key, days=1)
        server, server_key = home / "server.crt", home / "server.key"
        authority.issue(server, server_key, days=1)
        store = home / "server.pem"
        store.write_text(server_key.read_text() + server.read_text())
        listeners = {
            "PLAINTEXT": port, "CONTROLLER": controller,
            "TLS": self._tls, "SCRAM": self._scram, "PLAIN": self._plain, "OAUTH": self._oauth,
        }  # fmt: skip
        settings = broker_settings(1, port, controller, home / "data") | {
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": ",".join(f"{name}://127.0.0.1:{at}" for name, at in listeners.items()),
            "advertised.listeners": ",".join(
                f"{name}://localhost:{at}" for name, at in listeners.items() if name != "CONTROLLER"
            ),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,"
            "SCRAM:SASL_SSL,PLAIN:SASL_PLAINTEXT,OAUTH:SASL_PLAINTEXT",
            # The stranger may do nothing; all other users may do everything.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER};User:CN=localhost",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "listener.name.tls.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": f"{_LOGIN}.plain.PlainLoginModule required"
            f' user_{USER}="{PASSWORD}";',
            # After one second, a client must log in again on its connection. aiokafka does not, so the broker closes
            # the connection.
            "listener.name.plain.plain.connections.max.reauth.ms": 1000,
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule"
            ' required unsecuredLoginStringClaim_sub="broker";',
        }
        users = [
            argument
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for user in (USER, STRANGER)
            for argument in ("--add-scram", f"{mechanism}=[name={user},password={PASSWORD}]")
        ]
        self.daemon = format_broker(
            "kafka-secure", kafka_with_archive(), home, settings, "--standalone", *users,
            heap="384m", ready=self._is_ready,
        )  # fmt: skip

    @property
    def with_certificate(self) -> dict[str, Any]:
        """Return the settings of a connection by TLS with a client's certificate."""
        return {
            "bootstrap_servers": f"localhost:{self._tls}", "security_protocol": "SSL",
            "ssl_cafile": str(self.authority), "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
        }  # fmt: skip

    def with_scram(
        self, mechanism: str, password: str = PASSWORD, *, user: str = USER
    ) -> dict[str, Any]:
        return {
            "bootstrap_servers": f"localhost:{self._scram}", "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password,
            "ssl_cafile": str(self.authority),
        }  # fmt: skip

    @property
    def with_plain(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": f"localhost:{self._plain}", "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD,
        }  # fmt: skip

    def with_token(self, **how: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": f"localhost:{self._oauth}", "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER", **how,
        }  # fmt: skip

    def allow(self, operation: AclOperation, kind: ResourceType, name: str) -> None:
        """Give `STRANGER` the right to an operation on a topic or a group."""
        right = AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{STRANGER}", "*", operation,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for answer in admin.create_acls([right]).values():
            answer.result()

    def _is_ready(self) -> bool:
        if not accepts_connections(self._port):
            return False
        return bool(self._admin(lambda admin: admin.describe_cluster())["brokers"])


def make_token(*, life_s: float = 300.0, subject: str = USER) -> str:
    """Return a token without a signature, which Kafka accepts with its settings for tests."""

    def part(content: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + life_s})}."
