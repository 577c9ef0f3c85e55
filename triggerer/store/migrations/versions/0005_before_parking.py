"""Messages that are set aside for a watcher. Before: the release before parks nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables, without rows, and a count that begins at zero."""
    op.create_table(
        "parked_body",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("stream_digest", sa.String(80), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", BIG_ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parked_body")),
        sa.UniqueConstraint(
            "stream_digest",
            "idempotency_key",
            name=op.f("uq_parked_body_stream_digest_idempotency_key"),
        ),
    )
    op.create_table(
        "parked_message",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("watcher_id", BIG_ID, nullable=False),
        sa.Column("body_id", BIG_ID, nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("parked_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["watcher_id"], ["watcher.id"], name=op.f("fk_parked_message_watcher_id_watcher")
        ),
        sa.ForeignKeyConstraint(
            ["body_id"], ["parked_body.id"], name=op.f("fk_parked_message_body_id_parked_body")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parked_message")),
        sa.UniqueConstraint(
            "watcher_id",
            "idempotency_key",
            name=op.f("uq_parked_message_watcher_id_idempotency_key"),
        ),
    )
    op.create_index("ix_parked_message_body_id", "parked_message", ["body_id"], unique=False)
    op.create_index(
        "ix_parked_message_kept",
        "parked_message",
        ["watcher_id"],
        unique=False,
        sqlite_where=sa.text("state = 'kept'"),
        postgresql_where=sa.text("state = 'kept'"),
    )
    op.add_column(
        "watcher_position",
        sa.Column("failures", sa.Integer(), nullable=False, server_default=sa.text("0")),
    )
