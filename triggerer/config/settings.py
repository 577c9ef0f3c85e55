"""The settings in force, and access to connections."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from triggerer.config.references import resolve
from triggerer.config.sections import (
    ApiSettings,
    CoreSettings,
    DagProcessorSettings,
    DatabaseSettings,
    ExecutorSettings,
    LogsSettings,
    MetricsSettings,
    NotifySettings,
    RetentionSettings,
    SchedulerSettings,
    SparkSettings,
    TriggererSettings,
)
from triggerer.config.sources import DEFAULT_FILE
from triggerer.errors import ConfigurationError, UnknownConnection
from triggerer.nearest import ending
from triggerer.observability.redaction import remember_secrets_in
from triggerer.observability.target_names import remember_targets, target_names


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force. `connections` has the values as written; `get_connection` resolves secrets."""

    core: CoreSettings
    database: DatabaseSettings
    triggerer: TriggererSettings
    scheduler: SchedulerSettings
    dag_processor: DagProcessorSettings
    executor: ExecutorSettings
    spark: SparkSettings
    api: ApiSettings
    metrics: MetricsSettings
    notify: NotifySettings
    retention: RetentionSettings
    logs: LogsSettings
    pools: Mapping[str, int]
    """Slots by pool name. A DAG file that names another pool has an error."""
    connections: Mapping[str, Mapping[str, Any]] = field(repr=False)
    file: Path | None
    sources: Mapping[tuple[str, ...], str] = field(repr=False)
    """The origin of each value, by (section, key) or (connections, id, key)."""
    environ: Mapping[str, str] = field(repr=False)
    service_variables: frozenset[str] = frozenset()
    """The environment variables that only the service needs, such as the database's URL. Processes that execute users'
    code do not get them."""

    def remember_secrets(self) -> None:
        """Hide the secrets of these settings in all output of this process.

        Call this in a process that received the settings from another process. `load_settings` hides them itself.
        """
        for section in (self.core, self.database, self.spark, self.api):
            remember_secrets_in("", asdict(section))
        remember_targets(self.notify.urls)
        for connection in self.connections.values():
            remember_secrets_in("", connection)

    @property
    def is_dags_folder_configured(self) -> bool:
        """Whether the DAGs folder was configured. A configured folder must exist; the default folder may be missing."""
        return self.sources["core", "dags_folder"] != "default"

    def get_dags_folder(self) -> Path:
        """Return the DAGs folder, after checking that it can be read.

        Raises:
            ConfigurationError: The folder does not exist, or cannot be read.
        """
        folder = self.core.dags_folder
        hint = "name it with --dags-folder, or as dags_folder in [core]"
        try:
            os.scandir(folder).close()
        except FileNotFoundError as error:
            raise ConfigurationError(f"there is no DAGs folder {folder}", hint=hint) from error
        except OSError as error:
            raise ConfigurationError(
                f"the DAGs folder {folder} cannot be read: {error.strerror}", hint=hint
            ) from error
        return folder

    def get_connection(self, connection_id: str) -> Mapping[str, Any]:
        """Return the connection's settings. Secrets are resolved at each call, so that a rotated secret is seen.

        Raises:
            ConfigurationError: There is no such connection, or one of its secrets cannot be read.
        """
        return Connections(self.connections, self.file, self.environ).get(connection_id)

    def resolve_targets(self) -> dict[str, str]:
        """Return the URLs of `[notify] urls` by their names, which have no secrets.

        Raises:
            ConfigurationError: A variable is not set, or a file cannot be read.
        """
        return {name: self.resolve_target(name) for name in target_names(self.notify.urls)}

    def resolve_target(self, name: str) -> str:
        """Return the URL of one target of `[notify] urls`. A reference is resolved at each call.

        So a changed secret is seen, and a reference that cannot be resolved does not affect the other targets.

        Raises:
            ConfigurationError: The variable is not set, or the file cannot be read.
        """
        written = self.notify.urls
        by_name = dict(zip(target_names(written), written, strict=True))
        base = self.file.parent if self.file else Path()
        url: str = resolve(by_name[name], "[notify] urls", self.environ, base)
        remember_targets([url])
        return url


@dataclass(frozen=True, slots=True)
class Connections:
    """`[connections]`, as written. Child processes of the service need no other settings."""

    written: Mapping[str, Mapping[str, Any]] = field(repr=False)
    file: Path | None
    environ: Mapping[str, str] = field(repr=False)

    def get(self, connection_id: str) -> Mapping[str, Any]:
        """Return a connection's settings, with its references to secrets resolved.

        Raises:
            ConfigurationError: There is no such connection, or one of its secrets cannot be read.
        """
        try:
            connection = self.written[connection_id]
        except KeyError:
            raise UnknownConnection(
                f"there is no connection {connection_id!r}{ending(connection_id, self.written)}",
                hint=f"add [connections.{connection_id}] to {self.file or DEFAULT_FILE},"
                " and restart a running service: it reads its settings once",
            ) from None
        base = self.file.parent if self.file else Path()
        resolved = {
            key: resolve(value, f"connections.{connection_id}.{key}", self.environ, base)
            for key, value in connection.items()
        }
        remember_secrets_in("", resolved)
        return resolved
