"""Finds runs by partition key, and keys noted before the clock was set back. Before: what is there stays."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

KEYED = sa.text("partition_key IS NOT NULL")
NOTED = sa.text("noted_at IS NOT NULL")


def upgrade() -> None:
    """Add the column, without values, and the indexes."""
    op.add_column("dag_partition", sa.Column("noted_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_dag_partition_noted",
        "dag_partition",
        ["dag_id", "noted_at"],
        unique=False,
        sqlite_where=NOTED,
        postgresql_where=NOTED,
    )
    op.create_index(
        "ix_dag_run_partition_key",
        "dag_run",
        ["dag_id", "partition_key", "id"],
        unique=False,
        sqlite_where=KEYED,
        postgresql_where=KEYED,
    )
