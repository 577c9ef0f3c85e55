"""Where watchers stand that have fallen behind. Before: the release before has no such rows.

It must not run again once there are some, and it does not: it refuses a database that is newer than itself.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Add the table, without rows, and a column: nobody is behind, and no traceback is known."""
    op.create_table(
        "watcher_position",
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("stream_digest", sa.String(80), nullable=False),
        sa.Column("position", JSON, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("head", BIG_ID, nullable=True),
        sa.ForeignKeyConstraint(
            ["watcher_id"], ["watcher.id"], name=op.f("fk_watcher_position_watcher_id_watcher")
        ),
        sa.PrimaryKeyConstraint("watcher_id", "lane", name=op.f("pk_watcher_position")),
    )
    op.add_column("watcher", sa.Column("traceback", sa.Text(), nullable=True))
    op.create_index(
        "ix_watcher_position_stream_digest", "watcher_position", ["stream_digest"], unique=False
    )
