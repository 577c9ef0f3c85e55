"""Backfills of partition keys. Before: the release before takes one for a backfill of no intervals."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    """Add the table, without rows."""
    op.create_table(
        "backfill_key",
        sa.Column("backfill_id", BIG_ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("partition_key", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
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
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
