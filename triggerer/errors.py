"""Every error of the project, grouped by who has to act.

An error's message names the object, such as the DAG or the run. Values that a caller may need are attributes. `hint`
says what to do next, if anything can be done.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Self

from triggerer.nearest import hint


class TriggererError(Exception):
    """The root of all errors. `hint` is advice for the user, or None."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigurationError(TriggererError):
    """The operator has to change a setting before the service can start."""


class UnknownConnection(ConfigurationError):
    """The configuration has no connection of this id."""


class DagError(TriggererError):
    """A DAG file has a mistake, such as an invalid URI or an unknown argument. The file's author has to correct it."""


class TemplateError(DagError):
    """A template is malformed, or names something unknown. The message names the argument and the line."""


class AssetConflict(DagError):
    """DAG files declare two names for one URI, or two URIs for one name. The message names both declarations."""


class UnknownName(TriggererError):
    """No object has this name. The hint suggests a similar name, lists the known names, or says where to look."""

    def __init__(self, message: str, name: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.has_suggestion = False

    def suggest(self, known: Iterable[str]) -> Self:
        """Change the hint: suggest the most similar known name, or list the known names if they are few.

        If no known name is similar, and the list would be empty or too long, keep the hint.
        """
        self.hint = hint(self.name, known) or self.hint
        self.has_suggestion = True
        return self


class UnknownDag(UnknownName, DagError):
    """There is no DAG with this id: no file declares it, or its file could not be read."""

    def __init__(self, dag_id: str) -> None:
        super().__init__(
            f"there is no DAG {dag_id!r}",
            dag_id,
            hint="triggerer dags list shows the known DAGs, triggerer check the files that cannot be read",
        )
        self.dag_id = dag_id


class UnknownRun(UnknownName):
    """The DAG has no run of this id."""

    def __init__(self, dag_id: str, run_id: str) -> None:
        where = f"triggerer runs list --dag {dag_id}"
        super().__init__(f"the DAG {dag_id!r} has no run {run_id!r}", run_id, hint=where)
        self.dag_id = dag_id
        self.run_id = run_id


class UnknownAsset(UnknownName, DagError):
    """There is no asset with this name or URI, or no DAG file declares it.

    Args:
        message: None: the standard message.
    """

    def __init__(
        self, asset: str, message: str | None = None, *, hint: str = "triggerer assets list"
    ) -> None:
        super().__init__(message or f"there is no asset {asset!r}", asset, hint=hint)
        self.asset = asset
        self.has_suggestion = message is not None


class UnknownWatcher(UnknownName):
    """The asset has no watcher of this name."""

    def __init__(self, asset: str, watcher: str) -> None:
        said = f"the asset {asset!r} has no watcher {watcher!r}"
        super().__init__(said, watcher, hint="triggerer watchers list")
        self.asset = asset
        self.watcher = watcher


class CursorRefused(TriggererError):
    """The cursor for a list's next page is malformed, or belongs to another list or query. Request the first page."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="begin again without a cursor")


class NoLog(TriggererError):
    """The run has no log here: nothing is logged yet, the log is on another machine, or it was deleted."""


class BucketError(TriggererError):
    """The bucket of `[logs] ship` does not answer, or refuses the request. The log stays on the executor's machine."""


class UnknownMessage(TriggererError):
    """No message with this id is parked: it was replayed, discarded, or never parked."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted(ids)
        numbers = ", ".join(map(str, self.ids))
        one = len(self.ids) == 1
        super().__init__(
            f"no message {numbers} is parked"
            if one
            else f"no message with these numbers is parked: {numbers}",
            hint="triggerer watchers parked list",
        )


class UnknownToken(UnknownName):
    """The HTTP API has no token of this id."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"there is no token {token_id!r}", token_id, hint="triggerer tokens list")


class MoveRefused(TriggererError):
    """The state of a run, a backfill, a DAG or an asset does not allow the request. Nothing was changed."""


class DagFileError(DagError):
    """A DAG file cannot be read. `file` is its path as the caller gave it; `line` is None if the error has no line."""

    def __init__(
        self, reason: str, *, file: str, line: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}", hint=hint)
        self.file = file
        self.line = line
        self.reason = reason


class InvalidPartitionKey(DagError):
    """The DAG's mapper does not accept the partition key of an event. The event starts no run of that DAG."""

    def __init__(self, message: str, *, key: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class NotificationFailed(TriggererError):
    """The targets of a DAG's `notify` did not accept the message. The run is not affected."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        listed = "; ".join(f"{target}: {error}" for target, error in errors.items())
        super().__init__(
            f"a notification was not accepted: {listed}",
            hint="triggerer notify test URL tries a target",
        )
        self.errors = errors


class PluginError(TriggererError):
    """A trigger or a producer does not work as it should. The author of its class has to change it."""


class AckTimeout(PluginError):
    """A subscriber did not resolve an event, or the store did not confirm a derived event, within the ack timeout."""


class SubscriberOverflow(PluginError):
    """A subscriber held up its stream: its queue stayed full, or its unresolved messages reached a limit of the stream.

    The subscriber fails once its queue has been full for `shared_stream_overflow_grace`. If the watcher can fall behind
    alone, the subscriber usually fails earlier: as soon as a sibling waits for more messages.
    """


class GroupEnded(PluginError):
    """The group of a shared stream has ended or cannot start. `__cause__` may say why. A new group will follow."""

    def __init__(self, message: str, *, key: Hashable = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class BrokerError(TriggererError):
    """The broker or the connection to it failed."""


class BrokerUnavailable(BrokerError):
    """The broker does not answer now; the same call may succeed later."""


class BrokerRefused(BrokerError):
    """The broker refused (unknown topic, no permission, wrong credentials); a repeat would fail too."""


class BrokenRanges(TriggererError):
    """Ranges of offsets cannot be read. For example, offsets are missing, two ranges overlap, or messages are gone."""


class StoreError(TriggererError):
    """The database failed, or refused a statement."""


class TransientStoreError(StoreError):
    """The transaction failed for a reason that may pass; an exact repeat may succeed."""


class StoreUnavailable(TransientStoreError):
    """The database does not answer, is locked, or has no room. Nothing was written. A later call may succeed."""


class StoreRefused(StoreUnavailable, ConfigurationError):
    """The database cannot be used until an operator corrects the login, its rights, the tables or the database's file.

    A service does not start while the error persists. A running service tries again, as in an outage, because the
    reason may pass: a password was rotated, or a server failed over.
    """


class RowRefused(StoreError):
    """The database refuses this row, or a check refuses it before the database sees it. A repeat would fail too."""


class ParkedFull(StoreError):
    """A message can be neither parked nor stored for a watcher that is behind, because a limit has been reached.

    The limits count the messages and bytes of a watcher, and the bytes of all watchers.
    """


class NotSetAside(StoreError):
    """A message that a watcher rejected could not be set aside. It counts as failed and is redelivered."""


class LeaseLost(StoreError):
    """This process does not own the lease any longer. Nothing was written. Stop working on its stream or its runs."""


class StoreRestored(StoreError):
    """The database is older than the broker's positions: it was restored from a backup, or lost its last transactions.

    The stream is not read, because messages would be skipped. An operator has to run `triggerer db restored`.
    """


class Conflict(TransientStoreError):
    """A concurrent transaction won. Nothing was written; a repeat may succeed."""


class OutcomeUnknown(TransientStoreError):
    """The commit was sent, but no answer came. Repeat the exact transaction: unique keys make a repeat harmless."""


class SparkError(TriggererError):
    """Spark or the connection to it failed."""


class SubmitFailed(SparkError):
    """An application or a Spark session could not start. For example, a file is missing, or the cluster refuses."""


class RunFailed(SparkError):
    """A run, or its process, failed; the message is what `runs show` prints."""


class OutputRefused(RunFailed):
    """A writer of `output` wrote nothing: an argument, a row or a setting is wrong, or the attempt is not current."""


class RequestError(TriggererError):
    """The HTTP API cannot answer a request as it is. The client has to change the request."""


class BadRequest(RequestError):
    """A parameter, a header or the body of a request is malformed, or not known."""


class SignInNeeded(RequestError):
    """The request has no valid token and no valid session, or a sign-in failed."""


class RoleNeeded(RequestError):
    """The caller's role does not allow the request, or the request came from a page of another origin."""


class NothingThere(RequestError):
    """The HTTP API has no object at this path."""


class MethodNotThere(RequestError):
    """The path exists, but not for this HTTP method. The header `Allow` lists the methods that it takes."""


class KeyReused(RequestError):
    """The `Idempotency-Key`, or the id of the CloudEvent, was used for another request. Nothing was changed."""


class BodyTooLarge(RequestError):
    """The body of the request is over the limit."""


class WrongMediaType(RequestError):
    """The body's `Content-Type` is not one that the path takes."""


class WrongHost(RequestError):
    """The request's `Host` is no name of this API. `[api] allowed_hosts` lists the names that are allowed."""


class TooManyRequests(RequestError):
    """The token or session has made too many requests in a short time. `Retry-After` says when to try again."""

    def __init__(self, message: str, *, retry_after_s: int = 1, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ServerBusy(RequestError):
    """The API is overloaded, or an executor, the bucket of logs or the OpenID Connect provider does not answer.

    `Retry-After` says when to retry.
    """


class ServiceAway(TriggererError):
    """No process of the service answers at its socket in `home`. The service is down, or runs as another user."""


class InternalError(TriggererError):
    """The HTTP API failed because of a defect. The log shows the traceback with the request's id."""
