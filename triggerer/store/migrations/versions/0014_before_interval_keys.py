"""Partition keys of a backfill's intervals. Before: the release before makes their runs without."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, without values."""
    op.add_column("backfill_interval", sa.Column("partition_key", sa.Text(), nullable=True))
