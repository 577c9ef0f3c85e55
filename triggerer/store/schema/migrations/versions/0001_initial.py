"""The tables of release 0.1.0."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

# These types are defined here, not imported from the models, because this script must not change with the models.
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True)
BY_BYTES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

GROWING = ("asset_event", "queued_asset_event", "dag_run")
"""Tables that take most of the inserts. They are vacuumed after 1 % of their rows have changed (2 % for inserts), and
analyzed after 2 %. With PostgreSQL's defaults (20 % and 10 %), millions of rows would change first. Until then dead
rows would stay, and the planner would use old statistics.
"""
HOT = ("stream", "instance", "instance_report", "watcher_position")
"""Small tables whose rows change several times a second. Half of each page stays free for new versions of its rows. So
an update stays in the row's page and touches no index (PostgreSQL's "HOT update").
"""


def _where(condition: sa.TextClause) -> dict[str, Any]:
    return {"sqlite_where": condition, "postgresql_where": condition}


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "api_key",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
    )
    op.create_table(
        "api_login",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_login")),
    )
    op.create_table(
        "api_request",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.Column("made_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_request")),
    )
    op.create_index(op.f("ix_api_request_made_at"), "api_request", ["made_at"], unique=False)
    op.create_table(
        "api_token",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("last_used_at", INSTANT, nullable=True),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
    )
    op.create_table(
        "api_session",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("token_id", sa.String(length=16), nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["api_token.id"], name=op.f("fk_api_session_token_id_api_token")
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_session")),
    )
    op.create_index(op.f("ix_api_session_expires_at"), "api_session", ["expires_at"], unique=False)
    op.create_index(op.f("ix_api_session_token_id"), "api_session", ["token_id"], unique=False)
    op.create_table(
        "asset",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("group", sa.Text(), nullable=False),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.Column("declared_in", sa.Text(), nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_asset")),
        sa.UniqueConstraint("name", name=op.f("uq_asset_name")),
        sa.UniqueConstraint("uri", name=op.f("uq_asset_uri")),
    )
    op.create_table(
        "asset_alias",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_asset_alias")),
        sa.UniqueConstraint("name", name=op.f("uq_asset_alias_name")),
    )
    op.create_table(
        "asset_event",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.Column("timestamp", INSTANT, nullable=False),
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("idempotency_key", BY_BYTES, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("source_dag_id", sa.Text(), nullable=True),
        sa.Column("source_run_id", sa.Text(), nullable=True),
        sa.Column("source_task_id", sa.Text(), nullable=True),
        sa.Column("partition_key", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_asset_event")),
        sa.UniqueConstraint(
            "idempotency_key", "watcher_id", "ordinal", "asset_id", name="uq_asset_event_identity"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_asset_event_asset_id_id", "asset_event", ["asset_id", "id"], unique=False)
    op.create_index(
        "ix_asset_event_source",
        "asset_event",
        ["source_dag_id", "id"],
        unique=False,
        **_where(sa.text("source_dag_id IS NOT NULL")),
    )
    op.create_table(
        "dag",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("schedule", sa.JSON(), nullable=True),
        sa.Column("max_active_runs", sa.Integer(), nullable=False),
        sa.Column("events_per_run", sa.Integer(), nullable=True),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("tasks", sa.JSON(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("is_stale", sa.Boolean(), nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.Column("start_date", INSTANT, nullable=True),
        sa.Column("end_date", INSTANT, nullable=True),
        sa.Column("catchup", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("min_run_gap", sa.Double(), nullable=True),
        sa.Column("quiet_period", sa.Double(), nullable=True),
        sa.Column("depends_on_past", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("pools", sa.Text(), nullable=True),
        sa.Column(
            "next_run_after", INSTANT, server_default="9999-01-01 00:00:00.000000", nullable=False
        ),
        sa.Column("next_interval_start", INSTANT, nullable=True),
        sa.Column("next_interval_end", INSTANT, nullable=True),
        sa.Column("last_run_at", INSTANT, nullable=True),
        sa.Column("callbacks", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("dag_id", name=op.f("pk_dag")),
    )
    op.create_index("ix_dag_next_run_after", "dag", ["next_run_after"], unique=False)
    op.create_table(
        "dag_file",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("parsed_at", INSTANT, nullable=False),
        sa.Column("parse_seconds", sa.Double(), nullable=False),
        sa.Column("errors", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("missing_since", INSTANT, nullable=True),
        sa.Column("is_broken", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_dag_file")),
    )
    op.create_table(
        "dag_partition_event",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("partition_key", BY_BYTES, nullable=False),
        sa.Column("asset_event_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("run_pk", BIG_ID, nullable=True),
        sa.PrimaryKeyConstraint(
            "dag_id", "partition_key", "asset_event_id", name=op.f("pk_dag_partition_event")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_dag_partition_event_asset_event_id",
        "dag_partition_event",
        ["asset_event_id"],
        unique=False,
    )
    op.create_index(
        "ix_dag_partition_event_run",
        "dag_partition_event",
        ["run_pk", "asset_id", "asset_event_id"],
        unique=False,
        **_where(sa.text("run_pk IS NOT NULL")),
    )
    op.create_index(
        "ix_dag_partition_event_waiting",
        "dag_partition_event",
        ["dag_id", "partition_key", "asset_id", "asset_event_id"],
        unique=False,
        **_where(sa.text("run_pk IS NULL")),
    )
    op.create_table(
        "dag_partition_part",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("partition_key", BY_BYTES, nullable=False),
        sa.Column("asset_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("part", BY_BYTES, nullable=False),
        sa.Column("first_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint(
            "dag_id", "partition_key", "asset_id", "part", name=op.f("pk_dag_partition_part")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "instance",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("heartbeat_at", INSTANT, nullable=True),
        sa.Column("release", sa.String(length=40), server_default="", nullable=False),
        sa.Column("revision", sa.String(length=32), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instance")),
    )
    op.create_table(
        "process_settings",
        sa.Column("process", sa.String(length=80), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("saved_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("process", name=op.f("pk_process_settings")),
    )
    op.create_table(
        "instance_report",
        sa.Column("instance_id", sa.String(length=80), nullable=False),
        sa.Column("version", BIG_ID, nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("reported_at", INSTANT, nullable=False),
        sa.Column("looked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("instance_id", name=op.f("pk_instance_report")),
    )
    op.create_table(
        "schema_compat",
        sa.Column("revision", sa.String(length=32), nullable=False),
        sa.Column("min_revision", sa.String(length=32), nullable=False),
        sa.Column("release", sa.String(length=40), nullable=False),
        sa.Column("required_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_schema_compat")),
    )
    op.create_table(
        "audit",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("via", sa.String(length=80), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.Column("request_id", sa.String(length=80), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_table(
        "cleaned_rows",
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("number", BIG_ID, nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_cleaned_rows")),
    )
    op.create_table(
        "cleaning_turn",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("made_at", INSTANT, nullable=False),
        sa.Column("holder", sa.String(length=80), nullable=True),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("began_at", INSTANT, nullable=True),
        sa.Column("succeeded_at", INSTANT, nullable=True),
        sa.Column("deleted", sa.JSON(), nullable=True),
        sa.Column("failed_at", INSTANT, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("full_bytes", BIG_ID, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cleaning_turn")),
    )
    op.create_table(
        "parked_body",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("stream_digest", sa.String(length=80), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", BIG_ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parked_body")),
        sa.UniqueConstraint(
            "stream_digest",
            "idempotency_key",
            name=op.f("uq_parked_body_stream_digest_idempotency_key"),
        ),
    )
    op.create_index("ix_parked_body_size_bytes", "parked_body", ["size_bytes"], unique=False)
    op.create_table(
        "notification",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("severity", sa.String(length=20), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notification")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_notification_target_due_at", "notification", ["target", "due_at"], unique=False
    )
    op.create_table(
        "notified_subject",
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("subject", sa.String(length=250), nullable=False),
        sa.Column("told_at", INSTANT, nullable=False),
        sa.Column("is_single", sa.Boolean(), nullable=False),
        sa.Column("is_failing", sa.Boolean(), nullable=False),
        sa.Column("since", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("event", "subject", name=op.f("pk_notified_subject")),
    )
    op.create_table(
        "queued_asset_event",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("asset_event_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("run_pk", BIG_ID, nullable=True),
        sa.PrimaryKeyConstraint("asset_event_id", "dag_id", name=op.f("pk_queued_asset_event")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_queued_asset_event_run",
        "queued_asset_event",
        ["run_pk", "asset_id", "asset_event_id"],
        unique=False,
        **_where(sa.text("run_pk IS NOT NULL")),
    )
    op.create_index(
        "ix_queued_asset_event_waiting",
        "queued_asset_event",
        ["dag_id", "asset_id", "asset_event_id"],
        unique=False,
        **_where(sa.text("run_pk IS NULL")),
    )
    op.create_table(
        "restoration",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("start", INSTANT, nullable=False),
        sa.Column("restored_at", INSTANT, nullable=False),
        sa.Column("files_read_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_restoration")),
    )
    op.create_table(
        "stream",
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(length=80), nullable=True),
        sa.Column("epoch", BIG_ID, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("closed_until", INSTANT, nullable=True),
        sa.Column("incarnation", sa.String(length=32), nullable=False),
        sa.Column("marked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_stream")),
    )
    op.create_table(
        "stream_state",
        sa.Column("stream_digest", sa.String(length=80), nullable=False),
        sa.Column("epoch", BIG_ID, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stream_digest", name=op.f("pk_stream_state")),
    )
    op.create_table(
        "asset_alias_member",
        sa.Column("alias_id", BIG_ID, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["alias_id"],
            ["asset_alias.id"],
            name=op.f("fk_asset_alias_member_alias_id_asset_alias"),
        ),
        sa.ForeignKeyConstraint(
            ["asset_id"], ["asset.id"], name=op.f("fk_asset_alias_member_asset_id_asset")
        ),
        sa.PrimaryKeyConstraint("alias_id", "asset_id", name=op.f("pk_asset_alias_member")),
    )
    op.create_table(
        "asset_former_identity",
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("last_event_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["asset_id"], ["asset.id"], name=op.f("fk_asset_former_identity_asset_id_asset")
        ),
        sa.PrimaryKeyConstraint("asset_id", "last_event_id", name=op.f("pk_asset_former_identity")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_asset_former_identity_name"), "asset_former_identity", ["name"], unique=False
    )
    op.create_index(
        op.f("ix_asset_former_identity_uri"), "asset_former_identity", ["uri"], unique=False
    )
    op.create_table(
        "backfill",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("from_date", INSTANT, nullable=False),
        sa.Column("to_date", INSTANT, nullable=False),
        sa.Column("reprocess", sa.String(length=20), nullable=False),
        sa.Column("max_active", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("cancelled_at", INSTANT, nullable=True),
        sa.Column("params", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["dag_id"], ["dag.dag_id"], name=op.f("fk_backfill_dag_id_dag")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backfill")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_backfill_dag_id", "backfill", ["dag_id"], unique=False)
    op.create_table(
        "dag_partition",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("partition_key", BY_BYTES, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("newest_at", INSTANT, nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("noted_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(
            ["dag_id"], ["dag.dag_id"], name=op.f("fk_dag_partition_dag_id_dag")
        ),
        sa.PrimaryKeyConstraint("dag_id", "partition_key", name=op.f("pk_dag_partition")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_dag_partition_due", "dag_partition", ["dag_id", "due_at", "partition_key"], unique=False
    )
    op.create_index(
        "ix_dag_partition_noted",
        "dag_partition",
        ["dag_id", "noted_at"],
        unique=False,
        **_where(sa.text("noted_at IS NOT NULL")),
    )
    op.create_table(
        "dag_run",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.String(length=250), nullable=False),
        sa.Column("run_type", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("logical_date", INSTANT, nullable=True),
        sa.Column("data_interval_start", INSTANT, nullable=True),
        sa.Column("data_interval_end", INSTANT, nullable=True),
        sa.Column("run_after", INSTANT, nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("queued_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("log_home", sa.Text(), nullable=True),
        sa.Column("executor", sa.String(length=80), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("waiting_for", sa.Text(), nullable=True),
        sa.Column("waiting_since", INSTANT, nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("partition_key", sa.Text(), nullable=True),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("pools", sa.Text(), nullable=True),
        sa.Column("again", sa.JSON(), nullable=True),
        sa.Column("callback", sa.String(length=20), nullable=True),
        sa.Column("callback_executor", sa.String(length=80), nullable=True),
        sa.Column("callback_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("backfill_id", BIG_ID, nullable=True),
        sa.Column("held_until", INSTANT, nullable=True),
        sa.Column("first_started_at", INSTANT, nullable=True),
        sa.Column("notified_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(["dag_id"], ["dag.dag_id"], name=op.f("fk_dag_run_dag_id_dag")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dag_run")),
        sa.UniqueConstraint("dag_id", "run_id", name=op.f("uq_dag_run_dag_id_run_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_dag_run_active",
        "dag_run",
        ["dag_id", "state", "id"],
        unique=False,
        **_where(sa.text("state IN ('queued', 'running')")),
    )
    op.create_index(
        "ix_dag_run_automated",
        "dag_run",
        ["dag_id", "run_after"],
        unique=False,
        **_where(
            sa.text("logical_date IS NOT NULL AND run_type IN ('scheduled', 'asset_triggered')")
        ),
    )
    op.create_index(
        "ix_dag_run_backfill_id_state",
        "dag_run",
        ["backfill_id", "state"],
        unique=False,
        **_where(sa.text("backfill_id IS NOT NULL")),
    )
    op.create_index(
        "ix_dag_run_callback",
        "dag_run",
        ["callback", "id"],
        unique=False,
        **_where(sa.text("callback IS NOT NULL")),
    )
    op.create_index(
        "ix_dag_run_claimable",
        "dag_run",
        [sa.text("priority DESC"), "id"],
        unique=False,
        **_where(sa.text("state = 'queued' AND held_until IS NULL")),
    )
    op.create_index("ix_dag_run_dag_id_id", "dag_run", ["dag_id", "id"], unique=False)
    op.create_index(
        "ix_dag_run_partition_key",
        "dag_run",
        ["dag_id", "partition_key", "id"],
        unique=False,
        **_where(sa.text("partition_key IS NOT NULL")),
    )
    op.create_index(
        "ix_dag_run_untold",
        "dag_run",
        ["ended_at"],
        unique=False,
        **_where(sa.text("state = 'failed' AND notified_at IS NULL")),
    )
    op.create_index(
        "ix_dag_run_unsuccessful",
        "dag_run",
        ["state", "id"],
        unique=False,
        **_where(sa.text("state IN ('failed', 'cancelled')")),
    )
    op.create_table(
        "dag_schedule_alias",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("alias_id", BIG_ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["alias_id"],
            ["asset_alias.id"],
            name=op.f("fk_dag_schedule_alias_alias_id_asset_alias"),
        ),
        sa.ForeignKeyConstraint(
            ["dag_id"], ["dag.dag_id"], name=op.f("fk_dag_schedule_alias_dag_id_dag")
        ),
        sa.PrimaryKeyConstraint("dag_id", "alias_id", name=op.f("pk_dag_schedule_alias")),
    )
    op.create_table(
        "dag_schedule_asset",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["asset_id"], ["asset.id"], name=op.f("fk_dag_schedule_asset_asset_id_asset")
        ),
        sa.ForeignKeyConstraint(
            ["dag_id"], ["dag.dag_id"], name=op.f("fk_dag_schedule_asset_dag_id_dag")
        ),
        sa.PrimaryKeyConstraint("dag_id", "asset_id", name=op.f("pk_dag_schedule_asset")),
    )
    op.create_index(
        "ix_dag_schedule_asset_asset_id", "dag_schedule_asset", ["asset_id"], unique=False
    )
    op.create_table(
        "trigger",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("classpath", sa.Text(), nullable=False),
        sa.Column("kwargs", sa.JSON(), nullable=False),
        sa.Column("stream_digest", sa.String(length=80), nullable=False),
        sa.Column("guarantee", sa.String(length=20), nullable=True),
        sa.ForeignKeyConstraint(
            ["stream_digest"], ["stream.digest"], name=op.f("fk_trigger_stream_digest_stream")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trigger")),
        sa.UniqueConstraint("digest", name=op.f("uq_trigger_digest")),
    )
    op.create_index(op.f("ix_trigger_stream_digest"), "trigger", ["stream_digest"], unique=False)
    op.create_table(
        "backfill_interval",
        sa.Column("backfill_id", BIG_ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("logical_date", INSTANT, nullable=False),
        sa.Column("data_interval_start", INSTANT, nullable=False),
        sa.Column("data_interval_end", INSTANT, nullable=False),
        sa.Column("run_after", INSTANT, nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("run_pk", BIG_ID, nullable=True),
        sa.Column("partition_key", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["backfill_id"], ["backfill.id"], name=op.f("fk_backfill_interval_backfill_id_backfill")
        ),
        sa.PrimaryKeyConstraint("backfill_id", "number", name=op.f("pk_backfill_interval")),
    )
    op.create_index(
        "ix_backfill_interval_pending",
        "backfill_interval",
        ["backfill_id", "number"],
        unique=False,
        **_where(sa.text("state = 'pending'")),
    )
    op.create_table(
        "backfill_key",
        sa.Column("backfill_id", BIG_ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("partition_key", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("run_pk", BIG_ID, nullable=True),
        sa.ForeignKeyConstraint(
            ["backfill_id"], ["backfill.id"], name=op.f("fk_backfill_key_backfill_id_backfill")
        ),
        sa.PrimaryKeyConstraint("backfill_id", "number", name=op.f("pk_backfill_key")),
    )
    op.create_index(
        "ix_backfill_key_pending",
        "backfill_key",
        ["backfill_id", "number"],
        unique=False,
        **_where(sa.text("state = 'pending'")),
    )
    op.create_table(
        "task_run",
        sa.Column("run_pk", BIG_ID, nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["dag_run.id"], name=op.f("fk_task_run_run_pk_dag_run")
        ),
        sa.PrimaryKeyConstraint("run_pk", "task_id", name=op.f("pk_task_run")),
    )
    op.create_table(
        "run_attempt",
        sa.Column("run_pk", BIG_ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("executor", sa.String(length=80), nullable=False),
        sa.Column("launcher", sa.String(length=20), nullable=False),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("intent_at", INSTANT, nullable=False),
        sa.Column("launched_at", INSTANT, nullable=True),
        sa.Column("seen_at", INSTANT, nullable=True),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.Column("unknown_since", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["dag_run.id"], name=op.f("fk_run_attempt_run_pk_dag_run")
        ),
        sa.PrimaryKeyConstraint("run_pk", "epoch", name=op.f("pk_run_attempt")),
    )
    op.create_table(
        "run_launch",
        sa.Column("run_pk", BIG_ID, nullable=False),
        sa.Column("tag", sa.String(length=250), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=True),
        sa.Column("launcher", sa.String(length=20), nullable=False),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("link", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("seen_at", INSTANT, nullable=False),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["dag_run.id"], name=op.f("fk_run_launch_run_pk_dag_run")
        ),
        sa.PrimaryKeyConstraint("run_pk", "tag", name=op.f("pk_run_launch")),
    )
    op.create_index(
        "ix_run_launch_open",
        "run_launch",
        ["run_pk"],
        unique=False,
        **_where(sa.text("ended_at IS NULL")),
    )
    op.create_table(
        "watcher",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("trigger_id", BIG_ID, nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("owner", sa.String(length=80), nullable=True),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("cleaned_before", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(["asset_id"], ["asset.id"], name=op.f("fk_watcher_asset_id_asset")),
        sa.ForeignKeyConstraint(
            ["trigger_id"], ["trigger.id"], name=op.f("fk_watcher_trigger_id_trigger")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_watcher")),
        sa.UniqueConstraint("asset_id", "name", name=op.f("uq_watcher_asset_id_name")),
    )
    op.create_index(op.f("ix_watcher_trigger_id"), "watcher", ["trigger_id"], unique=False)
    op.create_table(
        "parked_message",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("body_id", BIG_ID, nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("parked_at", INSTANT, nullable=False),
        sa.Column("notified_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(
            ["body_id"], ["parked_body.id"], name=op.f("fk_parked_message_body_id_parked_body")
        ),
        sa.ForeignKeyConstraint(
            ["watcher_id"], ["watcher.id"], name=op.f("fk_parked_message_watcher_id_watcher")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parked_message")),
        sa.UniqueConstraint(
            "watcher_id",
            "idempotency_key",
            name=op.f("uq_parked_message_watcher_id_idempotency_key"),
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_parked_message_body_id"), "parked_message", ["body_id"], unique=False)
    op.create_index(
        "ix_parked_message_kept",
        "parked_message",
        ["watcher_id", "lane", "id"],
        unique=False,
        **_where(sa.text("state = 'kept'")),
    )
    op.create_index(
        "ix_parked_message_untold",
        "parked_message",
        ["watcher_id"],
        unique=False,
        **_where(sa.text("state = 'set_aside' AND notified_at IS NULL")),
    )
    op.create_table(
        "watcher_bookmark",
        sa.Column("watcher_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("classpath", sa.Text(), nullable=False),
        sa.Column("change", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["watcher_id"], ["watcher.id"], name=op.f("fk_watcher_bookmark_watcher_id_watcher")
        ),
        sa.PrimaryKeyConstraint("watcher_id", name=op.f("pk_watcher_bookmark")),
    )
    op.create_table(
        "watcher_position",
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("stream_digest", sa.String(length=80), nullable=False),
        sa.Column("position", sa.JSON(), nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.Column("head", BIG_ID, nullable=True),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("reemit", sa.JSON(), nullable=True),
        sa.Column("rewound_to", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["watcher_id"], ["watcher.id"], name=op.f("fk_watcher_position_watcher_id_watcher")
        ),
        sa.PrimaryKeyConstraint("watcher_id", "lane", name=op.f("pk_watcher_position")),
    )
    op.create_index(
        op.f("ix_watcher_position_stream_digest"),
        "watcher_position",
        ["stream_digest"],
        unique=False,
    )
    op.create_table(
        "watcher_replay",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("start", INSTANT, nullable=True),
        sa.Column("reemit", sa.Boolean(), nullable=False),
        sa.Column("is_restore", sa.Boolean(), nullable=False),
        sa.Column("requested_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(
            ["watcher_id"], ["watcher.id"], name=op.f("fk_watcher_replay_watcher_id_watcher")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_watcher_replay")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_watcher_replay_watcher_id"), "watcher_replay", ["watcher_id"], unique=False
    )
    if op.get_context().dialect.name == "postgresql":
        for table in GROWING:
            op.execute(
                f"ALTER TABLE {table} SET (autovacuum_vacuum_insert_scale_factor = 0.02,"
                " autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.01,"
                " autovacuum_vacuum_threshold = 10000)"
            )
        for table in HOT:
            op.execute(f"ALTER TABLE {table} SET (fillfactor = 50)")
