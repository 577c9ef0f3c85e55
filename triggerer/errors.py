"""Every error of the project, on one screen, branched by who has to act.

An error names the object that it is about, carries what a caller may want to read as attributes, and says in `hint`
what to do next where something can be done.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Self

from triggerer.nearest import hint


class TriggererError(Exception):
    """The root. `hint`, where there is one, is a sentence that tells the reader what to do next."""

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
    """The author of a DAG file has to change it: an invalid URI, a cycle of tasks, an unknown argument."""


class TemplateError(DagError):
    """A template is malformed, or names what there is not; the message says in which argument and line."""


class AssetConflict(DagError):
    """Two names for one URI, or two URIs for one name; the message names both places."""


class UnknownName(TriggererError):
    """Nothing has the name that somebody gave. The hint says where to look, until `suggest` knows better."""

    def __init__(self, message: str, name: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.has_suggestion = False

    def suggest(self, known: Iterable[str]) -> Self:
        """Suggest the known name that is probably meant, or list the known names if they are few."""
        self.hint = hint(self.name, known) or self.hint
        self.has_suggestion = True
        return self


class UnknownDag(UnknownName, DagError):
    """There is no DAG of this id: nobody wrote it, or its file could not be read yet."""

    def __init__(self, dag_id: str) -> None:
        super().__init__(
            f"there is no DAG {dag_id!r}",
            dag_id,
            hint="triggerer dags list shows what was found, triggerer check what could not be read",
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
        message: None: that there is none. Another message has a hint that stays.
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


class MoveRefused(TriggererError):
    """A run, a backfill, a DAG or an asset is in a state in which this cannot be asked of it. Nothing was changed."""


class DagFileError(DagError):
    """A DAG file cannot be read. `file` is as it was given; `line` is None where none is to blame."""

    def __init__(
        self, reason: str, *, file: str, line: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}", hint=hint)
        self.file = file
        self.line = line
        self.reason = reason


class InvalidPartitionKey(DagError):
    """The partition key of an event is none that the DAG's mapper takes. Its event starts no run of that DAG."""

    def __init__(self, message: str, *, key: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class PluginError(TriggererError):
    """The author of a trigger or of a producer has to change it."""


class AckTimeout(PluginError):
    """A subscriber did not resolve an event of its shared stream in time."""


class SubscriberOverflow(PluginError):
    """A subscriber's queue stayed full for longer than the grace that the poll waits for it."""


class GroupEnded(PluginError):
    """The shared stream ended under its subscribers; the cause says why. The group is restarted."""

    def __init__(self, message: str, *, key: Hashable = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class BrokerError(TriggererError):
    """The broker, or the way to it."""


class BrokerUnavailable(BrokerError):
    """The broker does not answer now; the same call may succeed later."""


class BrokerRefused(BrokerError):
    """The broker answered no (unknown topic, no permission, wrong credentials); a repeat brings the same answer."""


class StoreError(TriggererError):
    """The database."""


class TransientStoreError(StoreError):
    """The database did not do its part this time; the same transaction, repeated as it was, may succeed."""


class StoreUnavailable(TransientStoreError):
    """The database does not answer, is locked, or has no room; nothing was written, the same call may succeed later."""


class StoreRefused(StoreUnavailable, ConfigurationError):
    """The database answers, and refuses our login, our rights or our tables: somebody has to change that.

    At the start it is a mistake of configuration. Later it is an outage: a password is rotated, a server fails over.
    """


class RowRefused(StoreError):
    """The database, or a rule of ours before it, refuses this very row; a repeat brings the same answer."""


class ParkedFull(StoreError):
    """A message cannot be set aside: so many are already, or so many bytes of them."""


class NotSetAside(StoreError):
    """A message that a watcher rejected is not set aside, and so counts as failed: it comes again."""


class LeaseLost(StoreError):
    """Somebody else owns what this process thought it owned. Nothing was written; stop working on it."""


class Conflict(TransientStoreError):
    """Somebody else's transaction won. Nothing was written; a repeat may succeed."""


class OutcomeUnknown(TransientStoreError):
    """The commit was sent and its answer was not seen. Repeat the transaction as it was; its keys make that safe."""


class SparkError(TriggererError):
    """Spark, or the way to it."""


class SubmitFailed(SparkError):
    """No session could be had: no Java, no PySpark, a master that does not answer."""


class RunFailed(SparkError):
    """A run, or the worker that executed it, failed; the message is what `runs show` prints."""
