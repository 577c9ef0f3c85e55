"""Requests to read a log again, and what they leave with a position. Before: the release before asks for none.

It does not run again once there are some: it refuses a database that is newer than itself.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Add the table, without rows, and two columns: nobody was set back."""
    op.create_table(
        "watcher_replay",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("start", sa.DateTime(timezone=True), nullable=True),
        sa.Column("again", sa.Boolean(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["watcher_id"], ["watcher.id"], name=op.f("fk_watcher_replay_watcher_id_watcher")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_watcher_replay")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_watcher_replay_watcher_id", "watcher_replay", ["watcher_id"], unique=False)
    op.add_column("watcher_position", sa.Column("again", JSON, nullable=True))
    op.add_column("watcher_position", sa.Column("set_back_to", JSON, nullable=True))
