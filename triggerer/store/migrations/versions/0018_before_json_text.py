"""JSON is kept as it was written. Before: PostgreSQL casts the `jsonb` that the release before writes."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COLUMNS = {
    "asset": ["extra"],
    "asset_event": ["extra"],
    "backfill": ["params"],
    "dag": ["tags", "schedule", "params", "tasks"],
    "dag_file": ["errors", "warnings"],
    "dag_run": ["params", "again"],
    "trigger": ["kwargs"],
    "watcher_position": ["position", "again", "set_back_to"],
}


def upgrade() -> None:
    """Change the types of the columns. SQLite needs a new type only for the state of a stream: it may be one number."""
    if op.get_bind().dialect.name == "postgresql":
        for table, columns in COLUMNS.items():
            changes = ", ".join(f"ALTER {one} TYPE json USING {one}::json" for one in columns)
            op.execute(f"ALTER TABLE {table} {changes}")
        op.execute("ALTER TABLE stream_state ALTER value TYPE text USING value::text")
        return
    op.rename_table("stream_state", "stream_state_as_json")
    op.create_table(
        "stream_state",
        sa.Column("stream_digest", sa.String(80), nullable=False),
        sa.Column("epoch", BIG_ID, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("stream_digest", name=op.f("pk_stream_state")),
    )
    op.execute(
        "INSERT INTO stream_state (stream_digest, epoch, value) "
        "SELECT stream_digest, epoch, value FROM stream_state_as_json"
    )
    op.drop_table("stream_state_as_json")
