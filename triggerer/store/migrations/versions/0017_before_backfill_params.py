"""Parameters of a backfill's runs. Before: the release before makes the runs without them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    """Add the column, without values."""
    op.add_column("backfill", sa.Column("params", JSON, nullable=True))
