"""Runs that are repeated by hand, callbacks, and backfills. Before: the release before knows none of them.

A column that it does not know is null, or zero: nothing is repeated or called back, and no run belongs to a backfill.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
INSTANT = sa.DateTime(timezone=True)
CALLED = sa.text("callback IS NOT NULL")
BACKFILLED = sa.text("backfill_id IS NOT NULL")
PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    """Add columns and tables, without rows."""
    op.add_column("dag", sa.Column("callbacks", sa.Text(), nullable=True))
    op.add_column("dag_run", sa.Column("again", JSON, nullable=True))
    op.add_column("dag_run", sa.Column("callback", sa.String(20), nullable=True))
    op.add_column("dag_run", sa.Column("callback_executor", sa.String(80), nullable=True))
    op.add_column(
        "dag_run",
        sa.Column("callback_attempts", sa.Integer(), server_default="0", nullable=False),
    )
    op.add_column("dag_run", sa.Column("backfill_id", BIG_ID, nullable=True))
    op.create_index(
        "ix_dag_run_callback",
        "dag_run",
        ["callback", "id"],
        unique=False,
        sqlite_where=CALLED,
        postgresql_where=CALLED,
    )
    op.create_index(
        "ix_dag_run_backfill_id_state",
        "dag_run",
        ["backfill_id", "state"],
        unique=False,
        sqlite_where=BACKFILLED,
        postgresql_where=BACKFILLED,
    )
    op.create_table(
        "backfill",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("from_date", INSTANT, nullable=False),
        sa.Column("to_date", INSTANT, nullable=False),
        sa.Column("reprocess", sa.String(20), nullable=False),
        sa.Column("max_active", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("cancelled_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(["dag_id"], ["dag.dag_id"], name=op.f("fk_backfill_dag_id_dag")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backfill")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_backfill_dag_id", "backfill", ["dag_id"], unique=False)
    op.create_table(
        "backfill_interval",
        sa.Column("backfill_id", BIG_ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("logical_date", INSTANT, nullable=False),
        sa.Column("data_interval_start", INSTANT, nullable=False),
        sa.Column("data_interval_end", INSTANT, nullable=False),
        sa.Column("run_after", INSTANT, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("run_pk", BIG_ID, nullable=True),
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
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
