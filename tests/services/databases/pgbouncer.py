"""A real PgBouncer on a free loopback port, in front of a PostgreSQL server."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.databases.postgres import SUPERUSER, PostgresServer, unprivileged_user
from tests.services.process import (
    Daemon,
    ServiceUnavailable,
    accepts_connections,
    free_ports,
    running,
    temporary_home,
)


class PgBouncer:
    """A PgBouncer that forwards to every database of one server, with PgBouncer's own defaults."""

    def __init__(self, binary: str, home: Path, server: PostgresServer, mode: str) -> None:
        self.port = free_ports(1)[0]
        # PgBouncer refuses to run as root.
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
        """Return the URL of a database through PgBouncer, as an operator writes it."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"


@contextmanager
def open_pgbouncer(server: PostgresServer, *, mode: str) -> Iterator[PgBouncer]:
    """Start a PgBouncer in front of `server`, and kill it at the end of the block.

    Args:
        mode: PgBouncer's `pool_mode`: `session` or `transaction`.
    Raises:
        ServiceUnavailable: PgBouncer is not installed.
    """
    # The program's folder is not on the PATH of every user.
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if binary is None:
        raise ServiceUnavailable("no PgBouncer: install it (Debian: apt-get install pgbouncer)")
    with temporary_home("pgbouncer") as home:
        bouncer = PgBouncer(binary, home, server, mode)
        with running(bouncer.daemon):
            yield bouncer
