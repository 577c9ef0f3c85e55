"""Parses the database's URL as an operator writes it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from triggerer.config.home_directory import expand_user
from triggerer.errors import ConfigurationError
from triggerer.observability.redaction import redact_text
from triggerer.store.database.postgres.hosts import read_settings, with_hosts_as_option

_DRIVERS = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}
_FORMS = "write sqlite:///path/to/triggerer.db or postgresql://user@host:5432/database"


def parse_database_url(text: str, *, home: Path | None = None) -> URL:
    """Return the URL with its driver, such as `postgresql+asyncpg`, and with an absolute path for SQLite.

    Args:
        text: `sqlite:///…` or `postgresql://…` (also `postgres://…`), with or without a driver.
        home: The folder to which a relative SQLite path is relative. None: the working directory.
    Raises:
        ConfigurationError: The text is not a URL, or names a database or a driver that is not supported.
    """
    try:
        url = make_url(with_hosts_as_option(text))
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError("the database URL cannot be read", hint=_FORMS) from error
    backend, _, driver = url.drivername.partition("+")
    backend = "postgresql" if backend == "postgres" else backend
    if backend not in _DRIVERS:
        raise ConfigurationError(
            f"databases of the kind {backend!r} are not supported", hint=_FORMS
        )
    if driver and driver != _DRIVERS[backend]:
        raise ConfigurationError(
            f"the database URL names the driver {driver!r}",
            hint=f"leave it out, or write {backend}+{_DRIVERS[backend]}://",
        )
    url = url.set(drivername=f"{backend}+{_DRIVERS[backend]}")
    if backend == "sqlite":
        return _with_absolute_path(url, home)
    url = _with_known_ssl(url)
    read_settings(url)
    return url


def _with_absolute_path(url: URL, home: Path | None) -> URL:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        # The service uses several connections, and each would have an in-memory database of its own.
        raise ConfigurationError(
            "SQLite needs a file that several connections can open",
            hint="write sqlite:///path/to/triggerer.db",
        )
    if url.host:
        raise ConfigurationError(
            f"the SQLite URL names a host, {url.host!r}",
            hint="a path follows three slashes, an absolute one four: sqlite:////var/lib/triggerer.db",
        )
    path = expand_user(Path(url.database))
    return url.set(database=str((home or Path.cwd()) / path))


def _with_known_ssl(url: URL) -> URL:
    # PostgreSQL's users know this option as `sslmode`, its name in libpq. asyncpg calls the option `ssl`.
    if "sslmode" not in url.query:
        return url
    return url.difference_update_query(["sslmode"]).update_query_dict({"ssl": url.query["sslmode"]})


def describe(url: URL) -> str:
    """Return the database's name in messages, without secrets."""
    if url.get_backend_name() == "sqlite":
        return f"the SQLite database {url.database}"
    # Leave out the driver (`+asyncpg`), which the operator did not write.
    shown = url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)
    # Unquote hosts and paths of certificates in the query, so that they look as the operator wrote them.
    for character in ":,/[]":
        shown = shown.replace(f"%{ord(character):X}", character)
    # The query may contain secrets, such as ?password= and ?sslpassword=.
    return f"the PostgreSQL database {redact_text(shown)}"
