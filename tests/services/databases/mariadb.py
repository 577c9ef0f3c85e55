"""A real MariaDB server on a free loopback port, with its data in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.databases.postgres import unprivileged_user
from tests.services.process import (
    Daemon,
    ServiceError,
    ServiceUnavailable,
    accepts_connections,
    as_user,
    free_ports,
    running,
    temporary_home,
)


@dataclass(frozen=True)
class MariaDb:
    """The server, with an empty database `test`, which anybody may use."""

    daemon: Daemon
    port: int


@contextmanager
def open_mariadb() -> Iterator[MariaDb]:
    """Make a database, start its server, and remove both at the end.

    Raises:
        ServiceUnavailable: MariaDB is not installed.
    """
    server, install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if server is None or install is None:
        raise ServiceUnavailable(
            "no MariaDB server: install it (Debian: apt-get install mariadb-server)"
        )
    user = unprivileged_user() if os.geteuid() == 0 else None
    with temporary_home("mariadb") as home:
        if user is not None:
            shutil.chown(home, user)
        data = home / "data"
        _run(
            user,
            install,
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
        )
        (port,) = free_ports(1)
        daemon = Daemon(
            "mariadb",
            [
                server, "--no-defaults", f"--datadir={data}", "--bind-address=127.0.0.1", f"--port={port}",
                f"--socket={home / 'socket'}", f"--pid-file={home / 'pid'}", "--skip-grant-tables",
                "--skip-networking=0", "--innodb-flush-log-at-trx-commit=0",
            ],
            log=home / "server.log",
            ready=lambda: accepts_connections(port),
            user=user,
        )  # fmt: skip
        with running(daemon):
            yield MariaDb(daemon, port)


def _run(user: str | None, program: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **as_user(user),
    )
    if done.returncode != 0:
        raise ServiceError(f"{program} ended with {done.returncode}: {done.stderr.strip()}")
