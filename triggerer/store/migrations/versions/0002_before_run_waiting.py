"""What a running run waits for. Before: the release before does not look at it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns, which are null for all runs there are."""
    op.add_column("dag_run", sa.Column("waiting_for", sa.Text(), nullable=True))
    op.add_column("dag_run", sa.Column("waiting_since", sa.DateTime(timezone=True), nullable=True))
