"""Translates the drivers' exceptions into ours, at the edge of the store.

The codes in this module are from the manuals: PostgreSQL's SQLSTATE codes (PostgreSQL 15, appendix A), and SQLite's
result codes. An error that the driver itself raises, for instance for a value of a wrong type, has no code.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from ssl import SSLError
from typing import Final

import anyio
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from triggerer.errors import (
    Conflict,
    OutcomeUnknown,
    RowRefused,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TriggererError,
)

POOLER: Final = "a pooler in transaction or statement mode cannot be used: set it to session mode, or connect directly"
_CERTIFICATES: Final = (
    "check the server's certificate, and sslrootcert, sslcert and sslkey in [database] url; "
    "the files are read again for each connection"
)
_NO_DESCRIPTOR: Final = (
    "this process has no file descriptor left: raise its limit (ulimit -n, LimitNOFILE)"
)
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_MIGRATE: Final = "run `triggerer db migrate`"
# A unique violation means that another transaction inserted the row at the same time. An older row causes no violation,
# because the service looks for the row before it inserts one, or inserts with ON CONFLICT.
_ROW_EXISTS: Final = "another transaction made the row at the same time; a retry will find it"

# Each entry is the beginning of a SQLSTATE. The first entry that matches an error is used.
_POSTGRES: Final[tuple[tuple[str, type[TriggererError], str | None], ...]] = (
    ("40001", Conflict, None),
    ("40P01", Conflict, None),
    ("55P03", Conflict, None),
    ("40", Conflict, None),
    ("53100", StoreUnavailable, "the database server's disk is full: make room there"),
    ("53300", StoreUnavailable, "raise max_connections, or close other clients of the server"),
    ("53", StoreUnavailable, "the database server is out of resources"),
    ("08", StoreUnavailable, "the connection broke; is the server up?"),
    ("57P", StoreUnavailable, "the server is starting, stopping or was restarted"),
    ("57", StoreUnavailable, None),
    ("58", StoreUnavailable, "the database server cannot use its disk; see its log"),
    ("25006", StoreUnavailable, "the server is read-only; is it a standby?"),
    ("25", StoreUnavailable, None),
    ("55", StoreUnavailable, "does the database accept connections? See pg_database.datallowconn"),
    ("26", StoreUnavailable, POOLER),
    ("42P05", StoreUnavailable, POOLER),
    ("0A000", Conflict, "a table was changed under a prepared statement"),
    ("XX", StoreUnavailable, "an internal error of the server; see its log"),
    ("28", StoreRefused, "check user and password in [database] url, and pg_hba.conf"),
    ("3D000", StoreRefused, "create the database, or correct its name in [database] url"),
    ("42501", StoreRefused, "grant the database user the right to use its schema and tables"),
    ("0P000", StoreRefused, "does the role exist? Check the user in [database] url"),
    ("3F000", StoreRefused, "let the database user's search_path name an existing schema"),
    ("42P01", StoreRefused, _MIGRATE),
    ("42703", StoreRefused, _MIGRATE),
    ("42883", StoreRefused, _MIGRATE),
    ("23505", Conflict, _ROW_EXISTS),
    ("22", RowRefused, None),
    ("23", RowRefused, None),
    ("54", RowRefused, None),
)

_SQLITE: Final[dict[int, tuple[type[TriggererError], str | None]]] = {
    sqlite3.SQLITE_BUSY: (
        StoreUnavailable,
        "another process has the database locked; end it, or wait until it is done",
    ),
    sqlite3.SQLITE_LOCKED: (StoreUnavailable, "another connection has the database locked"),
    sqlite3.SQLITE_FULL: (StoreUnavailable, "the disk is full: make room where the database is"),
    sqlite3.SQLITE_IOERR: (
        StoreUnavailable,
        "the disk is full, or does not work as it should: see df, and dmesg",
    ),
    sqlite3.SQLITE_NOMEM: (StoreUnavailable, "the machine is out of memory"),
    sqlite3.SQLITE_INTERRUPT: (StoreUnavailable, None),
    sqlite3.SQLITE_CANTOPEN: (
        StoreRefused,
        "does the folder exist, and may this user write there? See [database] url",
    ),
    sqlite3.SQLITE_READONLY: (
        StoreRefused,
        "this user may not write the database's file, or make files beside it",
    ),
    sqlite3.SQLITE_PERM: (StoreRefused, "this user may not open the database's file"),
    sqlite3.SQLITE_NOTADB: (
        StoreRefused,
        "the file is not a SQLite database; see [database] url",
    ),
    sqlite3.SQLITE_CORRUPT: (StoreRefused, "the file is damaged: restore it from a backup"),
    sqlite3.SQLITE_CONSTRAINT: (RowRefused, None),
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: (Conflict, _ROW_EXISTS),
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: (Conflict, _ROW_EXISTS),
    sqlite3.SQLITE_CONSTRAINT_ROWID: (Conflict, _ROW_EXISTS),
    sqlite3.SQLITE_TOOBIG: (RowRefused, None),
    sqlite3.SQLITE_MISMATCH: (RowRefused, None),
    sqlite3.SQLITE_RANGE: (RowRefused, None),
}


@contextmanager
def translated(database: str) -> Iterator[None]:
    """Raise an exception as one of our errors, as `translate` does. Other exceptions, and cancellation, pass unchanged.

    Args:
        database: The database's name in the message.
    """
    try:
        yield
    except Exception as error:
        ours = translate(error, database)
        if ours is None:
            raise
        raise ours from error


def translate(error: Exception, database: str) -> TriggererError | None:
    """Return our error for an exception of a driver, of SQLAlchemy or of the system, or None for any other exception.

    Every `OSError`, `TimeoutError`, `OverflowError` and `UnicodeEncodeError` counts as an error of the database. So
    call this function only for exceptions of the database's own work.
    """
    if isinstance(error, TriggererError):
        return None
    if isinstance(error, PoolTimeout):
        return StoreUnavailable(f"{database} has no connection free", hint="the load is too high")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{database} did not answer in time")
    if isinstance(error, DBAPIError):
        return _translate_driver(error.orig, error, database)
    if _is_of_a_driver(error):
        # Scripts do not go through SQLAlchemy, so the exception comes as the driver raised it.
        return _translate_driver(error, None, database)
    if isinstance(error, StatementError) and isinstance(error.orig, RowRefused):
        # Our JSON serializer refused the value, because decoding the JSON would give another value.
        return RowRefused(error.orig.message, hint=error.orig.hint)
    if isinstance(error, StatementError) and isinstance(error.orig, ValueError | OverflowError):
        # SQLAlchemy's column type refused a value before the driver saw it.
        return RowRefused(f"{database} was given a value that it cannot hold: {error.orig}")
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return RowRefused(f"{database} was given a value that it cannot hold: {error}")
    if isinstance(error, SQLAlchemyError):
        return StoreError(f"{database}: {error}")
    if isinstance(error, SSLError):
        return StoreUnavailable(f"{database} cannot be reached by TLS: {error}", hint=_CERTIFICATES)
    if isinstance(error, FileNotFoundError):
        return StoreUnavailable(
            f"{database} cannot be connected to: {error}",
            hint="a certificate that [database] url names, or the server's socket, is not there",
        )
    if isinstance(error, OSError):
        hint = _NO_DESCRIPTOR if error.errno in _OUT_OF_DESCRIPTORS else "is it running?"
        return StoreUnavailable(f"{database} does not answer: {error}", hint=hint)
    return None


def translate_commit(error: Exception, database: str) -> TriggererError:
    """Return our error for a failed COMMIT.

    The outcome is unknown if no answer came, or if the error does not show whether the commit took effect.
    """
    cause: object = error.orig if isinstance(error, DBAPIError) else error
    answered = getattr(cause, "sqlstate", None)
    code = _sqlite_code(cause)
    if answered and not answered.startswith(("08", "57", "40003")):
        unknown = False
    elif code is not None:
        # After an I/O error, such as a failed fsync, the commit record may or may not be in the file.
        unknown = code & 0xFF == sqlite3.SQLITE_IOERR
    else:
        unknown = True
    ours = None if unknown else translate(error, database)
    if ours is not None:
        return ours
    return OutcomeUnknown(f"{database} did not say whether it committed: {cause}")


@contextmanager
def committing(database: str, timeout: timedelta) -> Iterator[None]:
    """Shield a commit up to a deadline, and raise its errors as ours.

    Raises:
        OutcomeUnknown: No answer came in time, or the error does not show whether the commit took effect.
        StoreError: Any other error, such as `Conflict` or `RowRefused`. Nothing was written.
    """
    seconds = timeout.total_seconds()
    with anyio.move_on_after(seconds, shield=True) as scope:
        try:
            yield
        except Exception as error:
            raise translate_commit(error, database) from error
    if scope.cancelled_caught:
        raise OutcomeUnknown(f"{database} did not confirm a commit within {seconds:g} s")


def _translate_driver(
    cause: BaseException | None, error: DBAPIError | None, database: str
) -> TriggererError:
    sqlstate = getattr(cause, "sqlstate", None)
    if sqlstate:
        for prefix, kind, hint in _POSTGRES:
            if sqlstate.startswith(prefix):
                return kind(f"{database} answered: {cause}", hint=hint)
        return StoreError(f"{database} answered: {cause}")
    code = _sqlite_code(cause)
    if code is not None:
        # An extended result code of SQLite has the primary result code in its lowest byte.
        primary = code & 0xFF
        kind, hint = _SQLITE.get(code) or _SQLITE.get(primary, (StoreError, None))
        if primary == sqlite3.SQLITE_ERROR and "no such" in str(cause):
            kind, hint = StoreRefused, _MIGRATE
        return kind(f"{database} answered: {cause}", hint=hint)
    if _is_unusable_setting(cause):
        return StoreRefused(f"{database} cannot be connected to: {cause}", hint=_CERTIFICATES)
    if "invalid input for query argument" in str(cause):
        # asyncpg's encoders refused the value before anything was sent.
        return RowRefused(f"{database} was given a value that it cannot hold: {cause}")
    is_broken = error is not None and error.connection_invalidated
    # asyncpg raises "another operation is in progress" if the server ends the connection and asyncpg has not noticed it
    # yet.
    is_broken |= "another operation" in str(cause)
    if is_broken or "connection" in str(cause).lower():
        return StoreUnavailable(f"{database} does not answer: {cause}", hint="is it running?")
    return StoreError(f"{database}: {cause}")


def _is_of_a_driver(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return True
    # Imported here, because a command on SQLite does not need asyncpg.
    from asyncpg import InterfaceError, InternalClientError, PostgresError

    return isinstance(error, PostgresError | InterfaceError | InternalClientError)


def _is_unusable_setting(cause: BaseException | None) -> bool:
    """True if a connection setting cannot be used, for instance because the certificate that it names is missing."""
    from asyncpg import ClientConfigurationError

    # SQLAlchemy may have wrapped the error in one of its own.
    return any(
        isinstance(error, ClientConfigurationError)
        for error in (cause, getattr(cause, "__cause__", None))
    )


def _sqlite_code(cause: object) -> int | None:
    if not isinstance(cause, sqlite3.Error):
        return None
    code: int | None = getattr(cause, "sqlite_errorcode", None)
    return code
