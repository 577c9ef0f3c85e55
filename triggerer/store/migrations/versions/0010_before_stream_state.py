"""The states of streams, and what watchers ask of their triggers. Before: the release before knows neither."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Add the table, without rows, and a column: nothing was asked."""
    op.create_table(
        "stream_state",
        sa.Column("stream_digest", sa.String(80), nullable=False),
        sa.Column("epoch", BIG_ID, nullable=False),
        sa.Column("value", JSON, nullable=False),
        sa.PrimaryKeyConstraint("stream_digest", name=op.f("pk_stream_state")),
    )
    op.add_column("trigger", sa.Column("guarantee", sa.String(20), nullable=True))
