"""Runs of a file that does not load are held; when a run first started, and an instance's last heartbeat."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

CLAIMABLE = sa.text("state = 'queued' AND held_until IS NULL")


def upgrade() -> None:
    """Add the columns, and the index that claims read."""
    op.add_column(
        "dag_file",
        sa.Column("is_broken", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.add_column("dag_run", sa.Column("held_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "dag_run", sa.Column("first_started_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column("instance", sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_dag_run_claimable",
        "dag_run",
        [sa.text("priority DESC"), "id"],
        unique=False,
        sqlite_where=CLAIMABLE,
        postgresql_where=CLAIMABLE,
    )
