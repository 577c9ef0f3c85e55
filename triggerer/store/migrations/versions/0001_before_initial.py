"""The first tables. Before: there is no release that could mind."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Written out rather than imported from the models: a script says what it did, whatever they become.
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
INSTANT = sa.DateTime(timezone=True)
BY_BYTES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "asset",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("group", sa.Text(), nullable=False),
        sa.Column("extra", JSON, nullable=False),
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
        sa.Column("extra", JSON, nullable=False),
        sa.Column("timestamp", INSTANT, nullable=False),
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("idempotency_key", BY_BYTES, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("source_dag_id", sa.Text(), nullable=True),
        sa.Column("source_run_id", sa.Text(), nullable=True),
        sa.Column("source_task_id", sa.Text(), nullable=True),
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
        sqlite_where=sa.text("source_dag_id IS NOT NULL"),
        postgresql_where=sa.text("source_dag_id IS NOT NULL"),
    )
    op.create_table(
        "dag",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("schedule", JSON, nullable=True),
        sa.Column("max_active_runs", sa.Integer(), nullable=False),
        sa.Column("events_per_run", sa.Integer(), nullable=True),
        sa.Column("params", JSON, nullable=False),
        sa.Column("tasks", JSON, nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("is_stale", sa.Boolean(), nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("dag_id", name=op.f("pk_dag")),
    )
    op.create_table(
        "dag_file",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("parsed_at", INSTANT, nullable=False),
        sa.Column("parse_seconds", sa.Double(), nullable=False),
        sa.Column("errors", JSON, nullable=False),
        sa.Column("warnings", JSON, nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_dag_file")),
    )
    op.create_table(
        "instance",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instance")),
    )
    op.create_table(
        "queued_asset_event",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("asset_event_id", BIG_ID, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("run_pk", BIG_ID, nullable=True),
        sa.PrimaryKeyConstraint("dag_id", "asset_event_id", name=op.f("pk_queued_asset_event")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_queued_asset_event_run",
        "queued_asset_event",
        ["run_pk", "asset_id", "asset_event_id"],
        unique=False,
        sqlite_where=sa.text("run_pk IS NOT NULL"),
        postgresql_where=sa.text("run_pk IS NOT NULL"),
    )
    op.create_index(
        "ix_queued_asset_event_waiting",
        "queued_asset_event",
        ["dag_id", "asset_id", "asset_event_id"],
        unique=False,
        sqlite_where=sa.text("run_pk IS NULL"),
        postgresql_where=sa.text("run_pk IS NULL"),
    )
    op.create_table(
        "stream",
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(length=80), nullable=True),
        sa.Column("epoch", BIG_ID, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_stream")),
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
        sa.Column("params", JSON, nullable=False),
        sa.Column("queued_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("log_home", sa.Text(), nullable=True),
        sa.Column("executor", sa.String(length=80), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
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
        sqlite_where=sa.text("state IN ('queued', 'running')"),
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_index("ix_dag_run_dag_id_id", "dag_run", ["dag_id", "id"], unique=False)
    op.create_index(
        "ix_dag_run_unsuccessful",
        "dag_run",
        ["state", "id"],
        unique=False,
        sqlite_where=sa.text("state IN ('failed', 'cancelled')"),
        postgresql_where=sa.text("state IN ('failed', 'cancelled')"),
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
        sa.Column("kwargs", JSON, nullable=False),
        sa.Column("stream_digest", sa.String(length=80), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_digest"], ["stream.digest"], name=op.f("fk_trigger_stream_digest_stream")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trigger")),
        sa.UniqueConstraint("digest", name=op.f("uq_trigger_digest")),
    )
    op.create_index(op.f("ix_trigger_stream_digest"), "trigger", ["stream_digest"], unique=False)
    op.create_table(
        "task_run",
        sa.Column("run_pk", BIG_ID, nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["dag_run.id"], name=op.f("fk_task_run_run_pk_dag_run")
        ),
        sa.PrimaryKeyConstraint("run_pk", "task_id", name=op.f("pk_task_run")),
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
        sa.ForeignKeyConstraint(["asset_id"], ["asset.id"], name=op.f("fk_watcher_asset_id_asset")),
        sa.ForeignKeyConstraint(
            ["trigger_id"], ["trigger.id"], name=op.f("fk_watcher_trigger_id_trigger")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_watcher")),
        sa.UniqueConstraint("asset_id", "name", name=op.f("uq_watcher_asset_id_name")),
    )
    op.create_index(op.f("ix_watcher_trigger_id"), "watcher", ["trigger_id"], unique=False)


def downgrade() -> None:
    """Refuse: there is nothing before."""
    raise NotImplementedError("there is nothing before the first tables")
