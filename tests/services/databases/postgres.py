"""A real PostgreSQL server on a free loopback port, with its data in a directory of its own."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import asyncpg

from tests.services.process import (
    Daemon,
    ServiceError,
    ServiceUnavailable,
    as_user,
    free_ports,
    run_apart,
)

SUPERUSER = "postgres"
_DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
_FAST = dict.fromkeys(_DURABLE, "off")


@contextmanager
def open_postgres(*, durable: bool = True) -> Iterator["PostgresServer"]:
    """Create a cluster, start its server, and remove both at the end.

    Args:
        durable: False is faster, but a server that is killed may lose its last commits.

    Raises:
        ServiceUnavailable: PostgreSQL is not installed.
    """
    with _running(PostgresServer(find_postgres(), _home(), durable=durable)) as server:
        yield server


@contextmanager
def open_standby(primary: "PostgresServer") -> Iterator["PostgresServer"]:
    """Copy a running server, and start the copy as a standby, which follows the server until `promote`."""
    with _running(
        PostgresServer(find_postgres(), _home(), durable=True, follows=primary)
    ) as server:
        yield server


def _home() -> Path:
    return Path(tempfile.mkdtemp(prefix="triggerer-postgres-"))


@contextmanager
def _running(server: "PostgresServer") -> Iterator["PostgresServer"]:
    try:
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(server.home, ignore_errors=True)


@cache
def find_postgres() -> Path:
    """Return the directory of the server's programs: Debian's newest, else the directory that `pg_config` names.

    Raises:
        ServiceUnavailable: No server is installed. (Packages of clients have `pg_config`, but no `initdb`.)
    """
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    candidates = sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
    if pg_config := shutil.which("pg_config"):
        shown = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=True)
        candidates.append(Path(shown.stdout.strip()))
    for candidate in candidates:
        if (candidate / "initdb").exists():
            return candidate
    raise ServiceUnavailable(
        "no PostgreSQL server: install it (Debian: apt-get install postgresql)"
    )


class PostgresServer:
    """One server, which keeps its port and data over `stop`, `kill` and `start`."""

    def __init__(
        self,
        binaries: Path,
        home: Path,
        *,
        durable: bool,
        follows: "PostgresServer | None" = None,
    ) -> None:
        self.home = home
        self.port = free_ports(1)[0]
        self._binaries = binaries
        # The server refuses to run as root.
        self._user = unprivileged_user() if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(home, self._user)
        data = home / "data"
        self._pid_file = data / "postmaster.pid"
        if follows is None:
            self._run(
                "initdb", f"--pgdata={data}", f"--username={SUPERUSER}", "--auth=trust",
                "--encoding=UTF8", "--locale=C", "--no-sync",
            )  # fmt: skip
        else:
            self._run(
                "pg_basebackup", f"--pgdata={data}", f"--username={SUPERUSER}", "--host=127.0.0.1",
                f"--port={follows.port}", "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
            )  # fmt: skip
        settings = _DURABLE if durable else _FAST
        settings = settings | {
            "listen_addresses": "127.0.0.1",
            "log_line_prefix": "%m [%p] %d ",
            "max_connections": "200",
            "port": str(self.port),
            "timezone": "UTC",
            "unix_socket_directories": "",
        }
        self.daemon = Daemon(
            "postgres",
            [
                binaries / "postgres", "-D", data,
                *(part for key, value in settings.items() for part in ("-c", f"{key}={value}")),
            ],
            log=home / "server.log",
            ready=self._is_ready,
            user=self._user,
        )  # fmt: skip

    def start(self) -> None:
        """Start the server on its port and data, and wait until it accepts connections."""
        self.daemon.start()

    def stop(self) -> None:
        """Stop the server in order, without waiting for clients to disconnect."""
        self.daemon.stop(signal.SIGINT)

    def kill(self) -> None:
        """Kill -9 the server and its backends; the next start recovers from the log."""
        self.daemon.kill()

    def url(self, database: str = SUPERUSER) -> str:
        """SQLAlchemy's URL of a database."""
        return f"postgresql+asyncpg://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def create_database(
        self, name: str, *, template: str | None = None, encoding: str | None = None
    ) -> str:
        """Create a database, empty or as a copy of `template`, and return its URL.

        The server refuses the copy while anybody is connected to `template`.
        """
        if encoding is not None:
            template = "template0"
        copied = "" if template is None else f' TEMPLATE "{template}"'
        encoded = "" if encoding is None else f" ENCODING '{encoding}'"
        self._execute(f'CREATE DATABASE "{name}"{copied}{encoded}')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database if it exists, and close all connections to it."""
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def promote(self) -> None:
        """Make this standby a primary, and wait until it is one."""
        self._execute("SELECT pg_promote()")

    def set(self, **settings: str) -> None:
        """Set parameters that take effect with a reload. Standbys that are copied later have them, too."""
        for name, value in settings.items():
            self._execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self._execute("SELECT pg_reload_conf()")

    def install(self, *files: Path) -> None:
        """Copy files, such as a certificate's key, into the data directory. Only the server may read the copies."""
        for file in files:
            target = Path(shutil.copy(file, self.home / "data"))
            target.chmod(0o600)
            if self._user is not None:
                shutil.chown(target, self._user)

    def _execute(self, statement: str) -> None:
        # Do not use createdb and dropdb. To run them as another user, Python would fork this process, which is slow
        # because the process is large.
        async def execute() -> None:
            connection = await asyncpg.connect(self.url().replace("+asyncpg", ""))
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        try:
            run_apart(execute())
        except asyncpg.PostgresError as error:
            raise ServiceError(f"{statement}: {error}") from error

    def _is_ready(self) -> bool:
        # Read the process id (line 1) and the status (line 8) from `postmaster.pid`, as pg_ctl does. If we connected
        # instead, the server would log errors, because its port opens before its recovery has ended.
        try:
            lines = self._pid_file.read_text().splitlines()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(self.daemon.pid)] and lines[7:] in (["ready   "], ["standby "])

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **as_user(self._user),
        )
        if done.returncode != 0:
            raise ServiceError(f"{program} ended with {done.returncode}: {done.stderr.strip()}")


def unprivileged_user() -> str:
    """Return the account that Debian's package creates, or else `nobody`."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"
