"""A real PgBouncer on a free loopback port, before a PostgreSQL server."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.postgres import SUPERUSER, PostgresServer, unprivileged_user
from tests.services.process import (
    Daemon,
    ServiceUnavailable,
    accepts_connections,
    free_ports,
    running,
    temporary_home,
)


class PgBouncer:
    """Forwards to every database of one server, with PgBouncer's own defaults; made by `open_pgbouncer`."""

    def __init__(self, binary: str, home: Path, server: PostgresServer, mode: str) -> None:
        self.port = free_ports(1)[0]
        # It refuses to run as root.
        user = unprivileged_user() if os.geteuid() == 0 else None
        users, config = home / "users.txt", home / "pgbouncer.ini"
        users.write_text(f'"{SUPERUSER}" ""\n')
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = {mode}\n"
        )
        for path in (home, users, config):
            if user is not None:
                shutil.chown(path, user)
        self.daemon = Daemon(
            "pgbouncer",
            [binary, config],
            log=home / "pgbouncer.log",
            ready=lambda: accepts_connections(self.port),
            user=user,
        )

    def url(self, database: str) -> str:
        """The URL of a database through it, as an operator writes it."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"


@contextmanager
def open_pgbouncer(server: PostgresServer, *, mode: str) -> Iterator[PgBouncer]:
    """Start one before `server`, and end it.

    Args:
        mode: PgBouncer's `pool_mode`: `session` or `transaction`.
    Raises:
        ServiceUnavailable: It is not installed.
    """
    # Not on the PATH of everybody.
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if binary is None:
        raise ServiceUnavailable("no PgBouncer: install it (Debian: apt-get install pgbouncer)")
    with temporary_home("pgbouncer") as home:
        bouncer = PgBouncer(binary, home, server, mode)
        with running(bouncer.daemon):
            yield bouncer
