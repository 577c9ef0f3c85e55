"""Opens all connections to the primary, the PostgreSQL server that accepts writes.

After a failover, a former primary that was only cut off may still accept writes, which would be lost. Each promotion
begins a new timeline with a higher number. So once a process has seen a timeline, it connects to no server with a lower
number.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import anyio
import asyncpg
from sqlalchemy import URL

from triggerer.errors import StoreRefused, StoreUnavailable, TriggererError
from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.driver_errors import translate
from triggerer.store.database.postgres.hosts import Host, read_settings

_log = LazyLogger(__name__)

# A statement fails after this time, for instance if the server vanished without closing the connection. The service's
# statements take less time.
STATEMENT_TIMEOUT_S: Final = 60.0
SETTINGS: Final = {
    # 10 seconds. A process that is stopped or cut off in the middle of a transaction must not keep its locks for ever.
    # A healthy transaction computes for a second or two at most between its statements.
    "idle_in_transaction_session_timeout": "10000",
    # The service's transactions rely on seeing what others committed before each statement. A server, a database or a
    # role may have another default.
    "default_transaction_isolation": "'read committed'",
    # JIT compilation of a plan would take longer than any query of the service.
    "jit": "off",
    # The function `triggerer.store.database.script.literal` does not escape backslashes, so it relies on this setting.
    "standard_conforming_strings": "on",
}
"""Session settings, set after a connection is open, because PgBouncer refuses them in the startup message."""
_APPLICATION: Final = "triggerer"
_CLOSE_TIMEOUT_S: Final = 2.0
_IS_READ_ONLY: Final = "SELECT current_setting('transaction_read_only') = 'on'"
# Reads the timeline from the first eight hexadecimal digits in the name of a WAL segment. `pg_control_checkpoint()` is
# not used, because it shows a new timeline only after the server's next checkpoint.
_HISTORY: Final = """
SELECT system_identifier,
    CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END
FROM pg_control_system()
"""
# `_HISTORY` fails with these errors if the database user may not call its functions, or if the server is not PostgreSQL
# and lacks the functions.
_UNKNOWN_HISTORY: Final = (
    asyncpg.SyntaxOrAccessError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.ObjectNotInPrerequisiteStateError,
)


class History(NamedTuple):
    """Identifies a primary: its cluster, and the promotion that made it primary. A standby has no history."""

    system: int
    """The id of the cluster. The primary and its standbys have the same id."""
    timeline: int
    """The number of the timeline. Each promotion of a standby begins a higher one."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    history: History | None = None
    """None if the server is a standby, or if it refused the query."""


class Primary:
    """Opens connections to the server of a URL that accepts writes. Each `Database` has one `Primary`.

    Raises:
        ConfigurationError: An option of the URL has an invalid value.
    """

    def __init__(self, url: URL, *, name: str) -> None:
        self._name = name
        self._settings = read_settings(url)
        # The host that answered most recently comes first.
        self._hosts = list(self._settings.hosts)
        self._newest: History | None = None

    @property
    def statement_cache_size(self) -> int | None:
        """The size that the URL gives, or None."""
        return self._settings.statement_cache_size

    async def connect(
        self,
        application_name: str | None = None,
        *,
        statement_timeout_s: float | None = STATEMENT_TIMEOUT_S,
    ) -> Any:
        """Return a new asyncpg connection to a server of the URL.

        If the URL names several servers, the last server that accepted a connection is tried first. Servers that take
        no writes are skipped, unless the URL has `target_session_attrs=any`.

        Args:
            statement_timeout_s: After this time a statement fails. None: a statement may take any time.
        Raises:
            StoreUnavailable: No server of the URL can be written to. For instance, the only server is a former primary.
            StoreRefused: The URL names several servers, and each refuses, for instance because the password is wrong.
            asyncpg.PostgresError, OSError, TimeoutError: The URL names one server, and connecting to it failed.
            TypeError: The URL has an option that asyncpg does not know.
        """
        if len(self._hosts) == 1:
            return await self._open(self._hosts[0], application_name, statement_timeout_s)
        failures: dict[Host, TriggererError] = {}
        for host in list(self._hosts):
            try:
                connection = await self._open(host, application_name, statement_timeout_s)
            except Exception as error:
                ours = error if isinstance(error, TriggererError) else translate(error, str(host))
                if ours is None:
                    raise
                failures[host] = ours
            else:
                if host in self._hosts:
                    self._hosts.remove(host)
                    self._hosts.insert(0, host)
                return connection
        if all(isinstance(error, StoreRefused) for error in failures.values()):
            raise next(iter(failures.values()))
        said = "; ".join(f"{host}: {error.message}" for host, error in failures.items())
        raise StoreUnavailable(
            f"no server of {self._name} can be written to: {said}",
            hint="is one of them the primary?",
        )

    def is_current(self, connection: Any) -> bool:
        """False if this process has seen that another server was promoted after the connection was opened."""
        history: History | None = connection.history
        # `_newest` was equal to `history` when this connection was opened. If `_newest` has changed, this process has
        # since connected to a newer primary.
        return history is None or history == self._newest

    async def check_for_promotion(self) -> None:
        """Connect to each server of the URL, to learn whether one was promoted. Unreachable servers are skipped.

        After a promotion, `is_current` is false for connections to the former primary.
        """
        for host in list(self._hosts):
            try:
                connection = await self._open(host)
            except Exception as error:
                if not isinstance(error, TriggererError) and translate(error, str(host)) is None:
                    raise
                _log.debug("a database server was not seen", server=str(host), error=str(error))
            else:
                await close(connection)

    async def _open(
        self,
        host: Host,
        application_name: str | None = None,
        statement_timeout_s: float | None = STATEMENT_TIMEOUT_S,
    ) -> Any:
        settings = self._settings
        options = dict(settings.options)
        if host.host is not None:
            options["host"] = host.host
        if host.port is not None:
            options["port"] = host.port
        if settings.statement_cache_size is not None:
            options["statement_cache_size"] = settings.statement_cache_size
        with anyio.fail_after(settings.timeout_s):
            connection = await asyncpg.connect(
                **options,
                timeout=settings.timeout_s,
                command_timeout=statement_timeout_s,
                server_settings={
                    "application_name": application_name
                    or settings.application_name
                    or _APPLICATION
                },
                connection_class=_Connection,
            )
            try:
                await self._set_up(connection, host)
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def _set_up(self, connection: Any, host: Host) -> None:
        await connection.execute(
            "; ".join(f"SET {key} = {value}" for key, value in SETTINGS.items())
        )
        if self._settings.takes_writes and await connection.fetchval(_IS_READ_ONLY):
            raise StoreUnavailable(
                f"{host} takes no writes", hint="it is a standby; is another one the primary?"
            )
        try:
            system, segment = await connection.fetchrow(_HISTORY)
        except _UNKNOWN_HISTORY as error:
            _log.debug(
                "the database does not tell its timeline", server=str(host), error=str(error)
            )
            return
        if segment is not None:
            connection.history = History(system, int(segment, 16))
            self._check_history(connection.history, host)

    def _check_history(self, history: History, host: Host) -> None:
        """Store the history of a server if it is the newest that this process has seen.

        Raises:
            StoreUnavailable: This process has seen a newer timeline. Or the URL names several servers, and this server
                belongs to another cluster than the server that was used before.
        """
        newest = self._newest
        if newest is None:
            self._newest = history
        elif history != newest:
            if history.system != newest.system and len(self._hosts) > 1:
                raise StoreUnavailable(
                    f"{host} belongs to another cluster than the server that was used before",
                    hint="correct [database] url; if that server should be used, restart this service",
                )
            if history.system == newest.system and history.timeline < newest.timeline:
                raise StoreUnavailable(
                    f"{host} is a former primary: its timeline is {history.timeline},"
                    f" and {newest.timeline} has been seen",
                    hint="stop it; if it should be used again, restart this service",
                )
            self._newest = history
            _log.warning(
                "another database server is the primary",
                server=str(host),
                timeline=history.timeline,
                before=newest.timeline,
            )


async def close(connection: Any) -> None:
    """Close a connection, or drop it silently if the server does not answer."""
    try:
        await connection.close(timeout=_CLOSE_TIMEOUT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
