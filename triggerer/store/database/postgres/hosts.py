"""Parses the servers and options of a PostgreSQL URL, in the forms that libpq's users know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from sqlalchemy import URL

from triggerer.errors import ConfigurationError

_DEFAULT_PORT: Final = 5432
_TIMEOUT_S: Final = 10.0
# The timeout for connecting to each server, if the URL names several servers. The timeout is so short that an instance
# reaches the second server before the instance's leases expire, even if the first server is dead.
_TIMEOUT_OF_SEVERAL_S: Final = 4.0
_SEVERAL: Final = "write postgresql://user@host-1:5432,host-2:5432/database"
# Matches a URL with several hosts, such as `//user:password@host-1:5432,host-2:5432/`. SQLAlchemy cannot parse it. A
# password may contain "@" and ",".
_AUTHORITY: Final = re.compile(
    r"(?P<before>^[a-z+]+://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<after>(?:[/?#].*)?$)"
)
_HOST: Final = re.compile(r"(?P<host>\[[^\]]+\]|/.*|[^:]*)(?::(?P<port>\d+))?$")
# asyncpg accepts these TLS options only in a `dsn` URL, not as arguments.
_OF_TLS: Final = frozenset(
    {
        "sslcert", "sslcrl", "sslkey", "sslpassword", "sslrootcert",
        "ssl_min_protocol_version", "ssl_max_protocol_version",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Host:
    """One server of a URL. If the host or port is None, asyncpg uses its default, such as PGHOST and PGPORT."""

    host: str | None
    port: int | None

    def __str__(self) -> str:
        host = self.host or "localhost"
        return f"{f'[{host}]' if ':' in host else host}:{self.port or _DEFAULT_PORT}"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How to connect to the servers of a URL."""

    hosts: tuple[Host, ...]
    takes_writes: bool
    """True to skip servers that take no writes, such as a standby."""
    timeout_s: float
    """How long to wait for the connection to each server, in seconds."""
    application_name: str | None
    statement_cache_size: int | None
    """None: the driver's default."""
    options: Mapping[str, Any]
    """The other arguments of `asyncpg.connect`."""


def with_hosts_as_option(text: str) -> str:
    """Return the URL with a list of servers moved to the option `host`, because SQLAlchemy cannot parse the list.

    A URL with a single server is returned unchanged.
    """
    found = _AUTHORITY.match(text)
    if found is None:
        return text
    after, _, query = found["after"].partition("?")
    query = "&".join([f"host={found['hosts']}", *([query] if query else [])])
    return f"{found['before']}{after or '/'}?{query}"


def read_settings(url: URL) -> ConnectionSettings:
    """Return the settings in the URL.

    Raises:
        ConfigurationError: An option has an invalid value.
    """
    options: dict[str, Any] = {
        key: value if isinstance(value, str) else ",".join(value)
        for key, value in url.query.items()
    }
    hosts = _hosts(url, options.pop("host", None), options.pop("port", None))
    named = {"user": url.username, "password": url.password, "database": url.database}
    options.update((key, str(value)) for key, value in named.items() if value)
    if "dbname" in options:
        options["database"] = options.pop("dbname")
    timeout = options.pop("connect_timeout", None)
    attributes = options.pop("target_session_attrs", None)
    if attributes not in {None, "any", "primary", "read-write"}:
        raise ConfigurationError(
            f"[database] url asks for target_session_attrs={attributes}",
            hint="leave this option out, or set it to read-write, because the service writes",
        )
    cache_size = options.pop("prepared_statement_cache_size", None)
    tls = {key: options.pop(key) for key in _OF_TLS & options.keys()}
    if tls:
        options["dsn"] = f"postgresql://?{urlencode(tls)}"
    several = len(hosts) > 1
    return ConnectionSettings(
        hosts,
        takes_writes=several if attributes is None else attributes != "any",
        timeout_s=(
            float(_number("connect_timeout", timeout))
            if timeout is not None
            else (_TIMEOUT_OF_SEVERAL_S if several else _TIMEOUT_S)
        ),
        application_name=options.pop("application_name", None),
        statement_cache_size=(
            None if cache_size is None else _number("prepared_statement_cache_size", cache_size)
        ),
        options=options,
    )


def _hosts(url: URL, listed: str | None, ports: str | None) -> tuple[Host, ...]:
    if listed is None:
        return (Host(url.host, url.port if ports is None else _number("port", ports)),)
    hosts = [_host(one) for one in listed.split(",")]
    if ports is None:
        return tuple(hosts)
    given = [_number("port", port) for port in ports.split(",")]
    if len(given) == 1:
        given *= len(hosts)
    if len(given) != len(hosts) or any(host.port is not None for host in hosts):
        raise ConfigurationError(
            "[database] url does not name one port for each of its hosts", hint=_SEVERAL
        )
    return tuple(Host(host.host, port) for host, port in zip(hosts, given, strict=True))


def _host(text: str) -> Host:
    if text.count(":") > 1 and "[" not in text:
        # An IPv6 address without brackets has no port. In libpq's form, the port is a separate option.
        return Host(text, None)
    found = _HOST.match(text)
    if found is None or not found["host"]:
        raise ConfigurationError(f"[database] url names the host {text!r}", hint=_SEVERAL)
    port = found["port"]
    return Host(found["host"].strip("[]"), None if port is None else int(port))


def _number(option: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"[database] url has {option}={text}, which is not a number")
    return int(text)
