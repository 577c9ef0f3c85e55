"""DAG runs, their tasks, and their attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, Json, UtcDateTime

_ACTIVE = text("state IN ('queued', 'running')")
_UNSUCCESSFUL = text("state IN ('failed', 'cancelled')")
_AUTOMATED = text("logical_date IS NOT NULL AND run_type IN ('scheduled', 'asset_triggered')")
_CALLED = text("callback IS NOT NULL")
_BACKFILLED = text("backfill_id IS NOT NULL")
_CLAIMABLE = text("state = 'queued' AND held_until IS NULL")
_KEYED = text("partition_key IS NOT NULL")
_OPEN = text("ended_at IS NULL")
_UNTOLD = text("state = 'failed' AND notified_at IS NULL")


class DagRun(Base):
    """One run of a DAG. `triggerer.domain.runs` has the legal transitions of `state`."""

    __tablename__ = "dag_run"
    __table_args__ = (
        UniqueConstraint("dag_id", "run_id"),
        Index(
            "ix_dag_run_active",
            "dag_id",
            "state",
            "id",
            sqlite_where=_ACTIVE,
        ),
        # This index finds the next runs to claim. It leaves out held runs, so that a claim does not read them.
        Index("ix_dag_run_claimable", text("priority DESC"), "id", sqlite_where=_CLAIMABLE),
        # This index lists a DAG's newest runs.
        Index("ix_dag_run_dag_id_id", "dag_id", "id"),
        Index(
            "ix_dag_run_unsuccessful",
            "state",
            "id",
            sqlite_where=_UNSUCCESSFUL,
        ),
        # This index finds the last run of a DAG's timetable.
        Index("ix_dag_run_automated", "dag_id", "run_after", sqlite_where=_AUTOMATED),
        Index("ix_dag_run_callback", "callback", "id", sqlite_where=_CALLED),
        Index("ix_dag_run_backfill_id_state", "backfill_id", "state", sqlite_where=_BACKFILLED),
        # This index finds the runs of a partition key, for backfills.
        Index("ix_dag_run_partition_key", "dag_id", "partition_key", "id", sqlite_where=_KEYED),
        # This index finds the failed runs about which no notification was made.
        Index("ix_dag_run_untold", "ended_at", sqlite_where=_UNTOLD),
        # AUTOINCREMENT: queue entries refer to runs by id. So SQLite must not give a deleted run's id to a new run.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    dag_id: Mapped[str] = mapped_column(ForeignKey("dag.dag_id"))
    run_id: Mapped[str] = mapped_column(String(250))
    run_type: Mapped[str] = mapped_column(String(20))
    """scheduled, asset_triggered, manual or backfill."""
    state: Mapped[str] = mapped_column(String(20))
    """queued, running, success, failed or cancelled."""
    logical_date: Mapped[datetime | None] = mapped_column(UtcDateTime)
    data_interval_start: Mapped[datetime | None] = mapped_column(UtcDateTime)
    data_interval_end: Mapped[datetime | None] = mapped_column(UtcDateTime)
    run_after: Mapped[datetime] = mapped_column(UtcDateTime)
    params: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    queued_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the last attempt began. None: it has not begun."""
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(Text)
    exit_code: Mapped[int | None]
    """The exit code of a worker process that died. If a signal killed it, the code is minus the signal's number."""
    log_home: Mapped[str | None] = mapped_column(Text)
    """The folder of the run's log on the executor's machine; see `triggerer.domain.run_logs`."""
    executor: Mapped[str | None] = mapped_column(String(80))
    """The id of the executor that last claimed the run. The executor must send this id and `epoch` with each result."""
    attempt: Mapped[int] = mapped_column(default=0)
    """The number of the last attempt. A claim adds 1.

    If an attempt does not count towards `MAX_ATTEMPTS`, 1 is subtracted when it ends. `hold_attempt` is an exception:
    it subtracts nothing, because the delay before the next attempt grows with this number.
    """
    epoch: Mapped[int] = mapped_column(server_default="0", default=0)
    """Grows with every claim, and when the executor is found dead. It never shrinks, so it identifies an attempt of the
    run.
    """
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    waiting_for: Mapped[str | None] = mapped_column(Text)
    """The reason why a running or held run waits. In other states, the value is out of date."""
    waiting_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    progress: Mapped[str | None] = mapped_column(Text)
    """The JSON of `triggerer.domain.attempts.SparkProgress`. If the run is not running, the value is out of date."""
    partition_key: Mapped[str | None] = mapped_column(Text)
    priority: Mapped[int] = mapped_column(server_default="0", default=0)
    """Queued runs with a higher priority are executed first."""
    pools: Mapped[str | None] = mapped_column(Text)
    """The DAG's pools when the run was created."""
    again: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The JSON of `triggerer.domain.attempts.Repeat` for the next attempts. None: they execute all tasks."""
    callback: Mapped[str | None] = mapped_column(String(20))
    """The state of the DAG's success or failure callback after the end of the run: due or running.

    None: nothing is left to call.
    """
    callback_executor: Mapped[str | None] = mapped_column(String(80))
    callback_attempts: Mapped[int] = mapped_column(server_default="0", default=0)
    backfill_id: Mapped[int | None] = mapped_column(BigId)
    held_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """No executor claims the queued run before this instant, see `triggerer.store.runs.held`. None: it is not held.

    `NEVER`: the run is held until its file loads."""
    first_started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the first attempt began. If a user queued the run again, attempts before that do not count."""
    notified_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When a notification about the failure of the run was made. None: none was made."""


class TaskRun(Base):
    """The last try of one task of a run."""

    __tablename__ = "task_run"

    run_pk: Mapped[int] = mapped_column(ForeignKey("dag_run.id"), primary_key=True)
    task_id: Mapped[str] = mapped_column(String(250), primary_key=True)
    state: Mapped[str] = mapped_column(String(20))
    """running, success, failed, cancelled, skipped or upstream_failed."""
    try_number: Mapped[int] = mapped_column(default=1)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(Text)
    progress: Mapped[str | None] = mapped_column(Text)
    """The JSON of `triggerer.domain.attempts.TaskProgress`. None: no Spark work was seen."""


class RunAttempt(Base):
    """One attempt to execute a run. `triggerer.domain.attempt_states` defines the legal transitions of `state`.

    The transaction that claims the run inserts the row, so the row exists before any work starts. If the executor
    queues the run again before the attempt has started, the row is deleted. If the executor dies instead, the row
    stays.
    """

    __tablename__ = "run_attempt"

    run_pk: Mapped[int] = mapped_column(ForeignKey("dag_run.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    executor: Mapped[str] = mapped_column(String(80))
    launcher: Mapped[str] = mapped_column(String(20))
    """`worker`: the attempt ends with its process. `connect`: the attempt also has a session on a Spark Connect server.
    """
    place: Mapped[str | None] = mapped_column(Text)
    """The address of the Spark Connect server. None for `worker`."""
    tag: Mapped[str] = mapped_column(Text)
    """The name under which a Spark server or cluster knows the attempt."""
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(Text)
    """Why the attempt is in this state, as text for people to read."""
    intent_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """When the run was claimed for the attempt."""
    launched_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the attempt began. None: it has not begun."""
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the executor last reported about the attempt."""
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    unknown_since: Mapped[datetime | None] = mapped_column(UtcDateTime)


class RunLaunch(Base):
    """Something that an attempt started outside its process, such as a Spark Connect session.

    While `ended_at` is NULL, the launch may be at work, so no later attempt of the run executes the user's code.
    """

    __tablename__ = "run_launch"
    __table_args__ = (Index("ix_run_launch_open", "run_pk", sqlite_where=_OPEN),)

    run_pk: Mapped[int] = mapped_column(ForeignKey("dag_run.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(250), primary_key=True)
    epoch: Mapped[int]
    """The epoch of the attempt that the launch works for. A later attempt may take the launch over."""
    task_id: Mapped[str | None] = mapped_column(String(250))
    launcher: Mapped[str] = mapped_column(String(20))
    place: Mapped[str | None] = mapped_column(Text)
    external_id: Mapped[str | None] = mapped_column(Text)
    """The id of the launch at the server or cluster `place`, such as the id of an application."""
    link: Mapped[str | None] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(Text)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
