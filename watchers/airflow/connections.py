"""A secrets backend through which Airflow's hooks find our `[connections.<id>]`. Imports Airflow."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk.configuration import conf
from airflow.secrets.base_secrets import BaseSecretsBackend

from triggerer.abc import get_connection
from triggerer.errors import ConfigurationError

logger = logging.getLogger(__name__)

FIELDS: Final = ("conn_type", "description", "host", "schema", "login", "password", "port")
_CALLBACKS: Final = ("on_commit",)


class TriggererConnections(BaseSecretsBackend):  # type: ignore[misc]  # Airflow is not there when types are checked
    """Looks up connections in our configuration. Airflow searches its other sources for a missing connection."""

    def get_connection(self, conn_id: str, team_name: str | None = None) -> Any:
        """Return Airflow's connection. If the result is None, Airflow tries `AIRFLOW_CONN_<ID>`."""
        try:
            settings = get_connection(conn_id)
        except ConfigurationError as error:
            # Log the reason here, because Airflow's own error only says that there is no connection.
            logger.warning(
                "Airflow's connection %r cannot be taken from the configuration: %s", conn_id, error
            )
            return None
        return self._get_connection_class()(conn_id=conn_id, **as_airflow(settings))

    def get_variable(self, key: str, team_name: str | None = None) -> str | None:
        return None


def as_airflow(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of Airflow's `Connection`: its own fields by name, and everything else in `extra`.

    For Kafka, keys get the names of librdkafka: `bootstrap_servers` becomes `bootstrap.servers`. So one section works
    for Airflow's triggers and for `KafkaEventTrigger`.
    """
    fields = {name: settings[name] for name in FIELDS if name in settings}
    rest = {name: value for name, value in settings.items() if name not in FIELDS}
    given = rest.pop("extra", {})
    extra = json.loads(given) if isinstance(given, str) else dict(given)
    if fields.get("conn_type", "kafka") == "kafka" and (
        "bootstrap_servers" in rest or "bootstrap.servers" in rest
    ):
        fields["conn_type"] = "kafka"
        rest = {_librdkafka_name(name): value for name, value in rest.items()}
    return {**fields, "extra": json.dumps({**extra, **rest})}


def _librdkafka_name(name: str) -> str:
    return name if name.endswith("_cb") or name in _CALLBACKS else name.replace("_", ".")


def install() -> None:
    """Make `TriggererConnections` the secrets backend of this process, if Airflow's configuration names none."""
    for section, option in (("workers", "secrets_backend"), ("secrets", "backend")):
        if named := conf.get(section, option, fallback=None):
            logger.warning(
                "Airflow's configuration names the secrets backend %s, so [connections] is not used",
                named,
            )
            return
    path = f"{TriggererConnections.__module__}.{TriggererConnections.__qualname__}"
    conf.set("workers", "secrets_backend", path)
