"""Sessions over Spark Connect: the driver is a server on another machine, and no Java is needed here."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import structlog

from triggerer.config import SparkSettings
from triggerer.domain.launches import session_id_of
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.reachability import (
    Endpoint,
    connect_endpoint,
    is_reachable,
    require_reachable,
    with_session,
    without_parameters,
)
from triggerer.worker.spark.settings import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MODE_VARIABLE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark sets this variable with the first session. While it is set, no classic session can be opened."""

_LONGEST_PAUSE_S: Final = 5.0

_endpoints: WeakKeyDictionary[SparkSession, Endpoint] = WeakKeyDictionary()

_log = structlog.get_logger(__name__)


def open_connect(settings: SparkSettings, *, tag: str | None = None) -> SparkSession:
    """Open a separate session on the server.

    Args:
        tag: The session's id is computed from this tag, so that another process can find and end the session. The
            session's operations get the tag, too.
    Raises:
        SubmitFailed: The client is not installed, or the server does not answer or refuses the session.
    """
    remote = settings.remote or ""
    try:
        import grpc  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SubmitFailed(
            f"PySpark's client for Spark Connect cannot be imported: {error}",
            hint="pip install 'triggerer[connect]'",
        ) from error

    shown = without_parameters(remote)
    endpoint = connect_endpoint(remote)
    require_reachable(f"The Spark Connect server {shown}", [endpoint])
    try:
        address = remote if tag is None else with_session(remote, session_id_of(tag))
        session: SparkSession = SparkSession.builder.remote(address).create()
        with _without_retries(session):
            # The query for the version is the first request to the server, so it shows whether the server accepts the
            # session.
            session.version  # noqa: B018
    except Exception as error:
        os.environ.pop(_MODE_VARIABLE, None)
        raise SubmitFailed(f"{shown} gave no session: {reason_of(error)}") from error
    _bound_retries(session, settings.cluster_patience)
    if tag is not None:
        session.addTag(tag)
    for key, value in settings.conf.items():
        _configure(session, key, value)
    _endpoints[session] = endpoint
    # At exit, the client's own hook sends a request, and would retry for a long time if the server is gone. Our hook
    # turns the retries off. Python calls our hook first, because our hook is registered last.
    atexit.register(_never_retry, session)
    return session


def is_connect(session: SparkSession) -> bool:
    """Return whether the session uses Spark Connect, without importing the client."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_connect_alive(session: SparkSession) -> bool:
    """Return whether the server still knows this session. A restarted server does not."""
    endpoint = _endpoints.get(session)
    remote: Any = session
    if endpoint is None or remote.is_stopped or not is_reachable(endpoint):
        return False
    try:
        with _without_retries(session):
            return bool(session.version)
    except Exception:  # noqa: BLE001 - any error means that the session is not alive
        return False


def close_connect(session: SparkSession) -> bool:
    """Release the session on its server. Return whether the server has confirmed the release. No error is raised."""
    endpoint = _endpoints.pop(session, None)
    remote: Any = session
    is_released = False
    with _without_retries(session):
        if endpoint is not None and not remote.is_stopped and is_reachable(endpoint):
            is_released = _release(session)
        # Without this line, `stop` would release the session again, and hide a failure of the first release.
        remote.release_session_on_close = False
        session.stop()
    os.environ.pop(_MODE_VARIABLE, None)
    return is_released


def _release(session: SparkSession) -> bool:
    client = _client_of(session)
    try:
        client.release_session()
    except Exception as error:  # noqa: BLE001 - whatever the client raises, the server has not confirmed it
        _log.warning("a session on a Spark Connect server was not released", reason=str(error))
        return False
    return True


def _configure(session: SparkSession, key: str, value: str) -> None:
    try:
        session.conf.set(key, value)
    except Exception as error:  # noqa: BLE001 - the session is usable without this setting
        _log.warning(
            "a Spark Connect server does not take this setting from its clients",
            key=key,
            reason=reason_of(error),
        )


def retries_within(patience: timedelta) -> int:
    """Return how many retries the client makes within `patience`. Its pauses grow up to `_LONGEST_PAUSE_S`."""
    retries, waited_s, pause_s = 0, 0.0, 0.05
    while waited_s < patience.total_seconds():
        waited_s += min(pause_s, _LONGEST_PAUSE_S)
        pause_s *= 4
        retries += 1
    return retries


def _bound_retries(session: SparkSession, patience: timedelta) -> None:
    """Let the client retry for `cluster_patience`. By default it retries for ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client = _client_of(session)
    policy: Any = DefaultPolicy
    longest_ms = int(1000 * _LONGEST_PAUSE_S)
    client.set_retry_policies(
        [policy(max_retries=retries_within(patience), max_backoff=longest_ms)]
    )


def _client_of(session: SparkSession) -> Any:
    """Return the session's client. PySpark's type annotations describe only the classic session."""
    remote: Any = session
    return remote.client


def _never_retry(session: SparkSession) -> None:
    client = _client_of(session)
    client.set_retry_policies([])


@contextlib.contextmanager
def _without_retries(session: SparkSession) -> Iterator[None]:
    """Disable the client's retries during the block."""
    client = _client_of(session)
    policies = client.get_retry_policies()
    _never_retry(session)
    try:
        yield
    finally:
        client.set_retry_policies(policies)
