"""Messages of queues that are kept: read by lane, and counted. Before: the release before reads the same rows.

On SQLite the number of a message that is gone was given to the next one. Who reads on behind a number passed over that.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

ARE_KEPT = sa.text("state = 'kept'")
_COLUMNS = (
    "id, watcher_id, body_id, lane, idempotency_key, state, failures, error, traceback, parked_at"
)


def upgrade() -> None:
    """Never give a number twice; replace an index, and add one."""
    op.drop_index("ix_parked_message_kept", "parked_message")
    if op.get_context().dialect.name == "sqlite":
        _make_anew()
    op.create_index(
        "ix_parked_message_kept",
        "parked_message",
        ["watcher_id", "lane", "id"],
        unique=False,
        sqlite_where=ARE_KEPT,
        postgresql_where=ARE_KEPT,
    )
    op.create_index("ix_parked_body_size_bytes", "parked_body", ["size_bytes"], unique=False)


def _make_anew() -> None:
    op.drop_index("ix_parked_message_body_id", "parked_message")
    op.rename_table("parked_message", "parked_message_old")
    op.create_table(
        "parked_message",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("watcher_id", sa.Integer(), nullable=False),
        sa.Column("body_id", sa.Integer(), nullable=False),
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
        sqlite_autoincrement=True,
    )
    op.execute(f"INSERT INTO parked_message ({_COLUMNS}) SELECT {_COLUMNS} FROM parked_message_old")
    op.drop_table("parked_message_old")
    op.create_index("ix_parked_message_body_id", "parked_message", ["body_id"], unique=False)
