"""Checks the names and URIs of assets, and normalizes the URIs."""

from __future__ import annotations

import re
import warnings
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from triggerer.errors import DagError

MAX_IDENTIFIER_LENGTH: Final = 1500

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
# RFC 3986, appendix A: unreserved, reserved, and percent-encoded octets.
_ILLEGAL = re.compile(r"[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]")
# A password may contain an unescaped "/" or "@". So after a ":", everything up to the last "@" counts as credentials,
# as in `triggerer.observability.redaction`.
_USERINFO = re.compile(r"//(?:[^/:]*+:.*|[^/]+)@", re.DOTALL)
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_RESERVED_SCHEMES: Final = frozenset({"airflow", "triggerer"})
# Azure URIs have the container where other URIs have the user name.
_USER_IS_CONTAINER: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})


class _Needs(NamedTuple):
    """The parts that a scheme requires."""

    authority: str | None = None
    path: tuple[str, ...] = ()
    optional: int = 0
    """The number of path parts that a URI may leave out."""

    @property
    def example(self) -> str:
        return f"{self.authority or ''}/{'/'.join(self.path)}"


_BUCKET: Final = _Needs(authority="bucket")
_TABLE_IN_SCHEMA: Final = _Needs(authority="host", path=("database", "schema", "table"), optional=1)
_NEEDS: Final[dict[str, _Needs]] = {
    "file": _Needs(path=("path",)),
    "s3": _BUCKET,
    "s3a": _BUCKET,
    "s3n": _BUCKET,
    "gs": _BUCKET,
    "abfs": _Needs(authority="container@account"),
    "abfss": _Needs(authority="container@account"),
    "kafka": _Needs(authority="host", path=("topic",)),
    "postgres": _TABLE_IN_SCHEMA,
    "postgresql": _TABLE_IN_SCHEMA,
    "redshift": _TABLE_IN_SCHEMA,
    "mssql": _TABLE_IN_SCHEMA,
    "mysql": _Needs(authority="host", path=("database", "table")),
    "mariadb": _Needs(authority="host", path=("database", "table")),
    "trino": _Needs(authority="host", path=("catalog", "schema", "table")),
    "bigquery": _Needs(authority="project", path=("dataset", "table")),
}


def _shown(uri: str) -> str:
    """Return an unparsed URI for an error message, with `***` instead of its credentials."""
    return _USERINFO.sub("//***@", uri)


class CredentialsInUri(UserWarning):
    """An asset's URI had a user name or a password, which normalizing dropped."""


def check_identifier(value: object, what: str) -> str:
    """Return `value` if it is a valid name.

    Raises:
        DagError: The value is not a string, is empty or too long, or has characters other than printable ASCII.
    """
    if not isinstance(value, str):
        raise DagError(f"{what} must be a string, not {value!r}")
    if not value or value.isspace():
        raise DagError(f"{what} is empty")
    if len(value) > MAX_IDENTIFIER_LENGTH:
        raise DagError(
            f"{what} is longer than {MAX_IDENTIFIER_LENGTH} characters: {_shown(value)[:60]!r}…"
        )
    if not value.isascii():
        odd = next(character for character in value if not character.isascii())
        raise DagError(
            f"{what} {_shown(value)!r} contains {odd!r}, which is not ASCII",
            hint="percent-encode it, as RFC 3986 asks",
        )
    if not value.isprintable():
        raise DagError(f"{what} {_shown(value)!r} contains a control character")
    return value


def normalize_uri(value: object, *, stacklevel: int = 2) -> str:
    """Return the form of the URI that is stored and compared.

    - The scheme becomes lower case. The rest keeps its upper and lower case, so two spellings are two assets.
    - Credentials are dropped with a `CredentialsInUri` warning.
    - If the scheme starts with `x-`, nothing after the scheme is changed, and credentials stay.
    - A string without a scheme is not changed.

    Raises:
        DagError: The URI is not a valid name (`check_identifier`), has a character outside RFC 3986 or a reserved
            scheme, or lacks a part that the scheme requires. The message shows the URI without its credentials.
    """
    uri = check_identifier(value, "the URI")
    match = _SCHEME.match(uri)
    if match is None:
        return uri
    scheme = match[1].lower()
    uri = scheme + uri[match.end(1) :]
    if scheme in _RESERVED_SCHEMES:
        raise DagError(
            f"the scheme of {_shown(uri)!r} is reserved", hint="use one of your own: x-something"
        )
    if scheme.startswith("x-"):
        return uri
    _check_characters(uri)
    try:
        parts = urlsplit(uri)
        _ = parts.port  # urllib checks the port only when it is read
    except ValueError as error:
        shown = _shown(uri)
        if shown == uri:
            raise DagError(f"{uri!r} is not a URI: {error}") from error
        # urllib's error can quote a part of the password, so neither its text nor its traceback is shown.
        raise DagError(
            f"{shown!r} is not a URI", hint="keep its credentials in a connection"
        ) from None
    bare = _without_credentials(parts, stacklevel=stacklevel + 1)
    # The error shows the author's spelling; urlunsplit() may change it.
    _check_parts(bare, _shown(str(value)))
    # urlunsplit() drops an empty query, and turns file:x into file:///x. So call it only if credentials were dropped.
    return uri if bare is parts else urlunsplit(bare)


def _check_characters(uri: str) -> None:
    if illegal := _ILLEGAL.search(uri):
        raise DagError(
            f"{_shown(uri)!r} contains {illegal[0]!r}, which a URI must not contain",
            hint=f"write %{ord(illegal[0]):02X} instead",
        )
    if _BAD_PERCENT.search(uri):
        raise DagError(
            f"{_shown(uri)!r}: a % is not followed by two hexadecimal digits",
            hint="write %25 for a percent sign",
        )


def _without_credentials(parts: SplitResult, *, stacklevel: int) -> SplitResult:
    userinfo, found, host = parts.netloc.rpartition("@")
    if not found or (parts.scheme in _USER_IS_CONTAINER and ":" not in userinfo):
        return parts
    if parts.scheme in _USER_IS_CONTAINER:
        host = f"{userinfo.partition(':')[0]}@{host}"
    bare = parts._replace(netloc=host)
    warnings.warn(
        f"the asset URI {urlunsplit(bare)!r} contained credentials, which were dropped; "
        "keep them in a connection",
        CredentialsInUri,
        stacklevel=stacklevel + 1,
    )
    return bare


def _check_parts(parts: SplitResult, shown: str) -> None:
    needs = _NEEDS.get(parts.scheme)
    if needs is None:
        return
    hint = f"it looks like {parts.scheme}://{needs.example}"
    # `//:9092` has an authority but no host, and `//@account` has an empty container.
    if needs.authority and not parts.hostname:
        raise DagError(f"{shown!r} names no {needs.authority}", hint=hint)
    if needs.authority and "@" in needs.authority and not parts.username:
        raise DagError(f"{shown!r} names no container", hint=hint)
    if not needs.path:
        return
    found = parts.path.strip("/").split("/") if parts.path.strip("/") else []
    if parts.scheme in {"file", "kafka"}:
        if not found:
            raise DagError(f"{shown!r} names no {needs.path[0]}", hint=hint)
    elif not len(needs.path) - needs.optional <= len(found) <= len(needs.path) or "" in found:
        *first, last = needs.path
        raise DagError(
            f"{shown!r} must name {', '.join(first)} and {last}, in this order", hint=hint
        )
