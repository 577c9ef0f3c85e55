"""Until when a watcher's events were deleted, and the keys of an event. Before: nothing deletes events."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, without values, and the index."""
    op.add_column("watcher", sa.Column("cleaned_before", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_dag_partition_event_asset_event_id",
        "dag_partition_event",
        ["asset_event_id"],
        unique=False,
    )
