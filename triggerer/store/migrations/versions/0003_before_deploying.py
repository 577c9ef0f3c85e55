"""Since when a file is missing, and until when a new stream is closed. Before: the release before looks at neither."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns, which are null for what there is: no file is missing, and every stream may open."""
    instant = sa.DateTime(timezone=True)
    op.add_column("dag_file", sa.Column("missing_since", instant, nullable=True))
    op.add_column("stream", sa.Column("closed_until", instant, nullable=True))
