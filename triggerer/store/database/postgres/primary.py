"""Connections to the PostgreSQL server that takes the writes: this is the only place that opens them.

After a failover two servers may take writes: the promoted one, and the former primary when it is back, or if it was
only cut off from whoever promoted the other. A promotion begins a new timeline, whose number is higher than all before.
So a process that has seen a timeline uses no server with a lower one any more.
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

# A server that vanished without closing the connection is noticed by then; no statement of ours takes so long.
STATEMENT_TIMEOUT_S: Final = 60.0
# No transaction of ours waits for anything but the database; the largest computes for a second or two in between.
SETTINGS: Final = {
    # A process that is stopped in the midst of a transaction, or cut off, must not keep its locks for ever.
    "idle_in_transaction_session_timeout": "10000",
    # Compiling a plan takes longer than any query of ours.
    "jit": "off",
    # Strings: as `triggerer.store.database.script.literal` writes them.
    "standard_conforming_strings": "on",
}
"""Set once a connection is open. As parameters of its start they would be refused by PgBouncer."""
_APPLICATION: Final = "triggerer"
_CLOSE_TIMEOUT_S: Final = 2.0
_IS_READ_ONLY: Final = "SELECT current_setting('transaction_read_only') = 'on'"
# A segment's name begins with the timeline, in eight digits. pg_control_checkpoint() shows it only after a checkpoint.
_HISTORY: Final = """
SELECT system_identifier,
    CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END
FROM pg_control_system()
"""
# Rights that were taken away; what a server that only speaks the protocol does not have.
_UNKNOWN_HISTORY: Final = (
    asyncpg.SyntaxOrAccessError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.ObjectNotInPrerequisiteStateError,
)


class History(NamedTuple):
    """Of a server that is no standby."""

    system: int
    """The cluster that it was copied from, through all copies."""
    timeline: int


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    history: History | None = None
    """None: the server does not tell, or is a standby."""


class Primary:
    """Opens connections to the server of a URL that takes writes; made once for each `Database`.

    Raises:
        ConfigurationError: The URL has an option whose value cannot be.
    """

    def __init__(self, url: URL, *, name: str) -> None:
        self._name = name
        self._settings = read_settings(url)
        # Where the last connection led: first the host that answers.
        self._hosts = list(self._settings.hosts)
        self._newest: History | None = None

    @property
    def statement_cache_size(self) -> int | None:
        """What the URL says; None: nothing."""
        return self._settings.statement_cache_size

    async def connect(self, application_name: str | None = None) -> Any:
        """Return a new connection of asyncpg's, to the first server of the URL that may be written to.

        Raises:
            StoreUnavailable, StoreRefused: None of several servers can be used.
            asyncpg.PostgresError, OSError, TimeoutError, TypeError: The only one cannot, or an option is not known.
        """
        if len(self._hosts) == 1:
            return await self._open(self._hosts[0], application_name)
        failures: dict[Host, TriggererError] = {}
        for host in list(self._hosts):
            try:
                connection = await self._open(host, application_name)
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
            f"no server of {self._name} can be written to: {said}", hint="is one the primary?"
        )

    def is_current(self, connection: Any) -> bool:
        """Whether no other server has been promoted since the connection's was, as far as this process has seen."""
        history: History | None = connection.history
        # One whose history is older would have been refused since.
        return history is None or history == self._newest

    async def look(self) -> None:
        """Look whether a server of the URL has been promoted since: connections to others are no longer current then.

        A server that cannot be reached is passed over.
        """
        for host in list(self._hosts):
            try:
                connection = await self._open(host, None)
            except Exception as error:
                if not isinstance(error, TriggererError) and translate(error, str(host)) is None:
                    raise
                _log.debug("a database server was not seen", server=str(host), error=str(error))
            else:
                await close(connection)

    async def _open(self, host: Host, application_name: str | None) -> Any:
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
                command_timeout=STATEMENT_TIMEOUT_S,
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
            self._judge(connection.history, host)

    def _judge(self, history: History, host: Host) -> None:
        """Note the latest history.

        Raises:
            StoreUnavailable: The server belongs to an earlier one.
        """
        newest = self._newest
        if newest is None:
            self._newest = history
        elif history != newest:
            if history.system != newest.system and len(self._hosts) > 1:
                raise StoreUnavailable(
                    f"{host} belongs to another cluster than the server that was used before",
                    hint="correct [database] url; if that server is to be used, restart this service",
                )
            if history.system == newest.system and history.timeline < newest.timeline:
                raise StoreUnavailable(
                    f"{host} is a former primary: its timeline is {history.timeline},"
                    f" and {newest.timeline} has been seen",
                    hint="stop it; if it is to be used again, restart this service",
                )
            self._newest = history
            _log.warning(
                "another database server is the primary",
                server=str(host),
                timeline=history.timeline,
                before=newest.timeline,
            )


async def close(connection: Any) -> None:
    """Close a connection in order, or without a word if the server does not answer."""
    try:
        await connection.close(timeout=_CLOSE_TIMEOUT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
