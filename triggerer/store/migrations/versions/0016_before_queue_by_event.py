"""The queue is ordered by event, then DAG. Before: by DAG, then event."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INDEXES = {
    "ix_queued_asset_event_run": (["run_pk", "asset_id", "asset_event_id"], "run_pk IS NOT NULL"),
    "ix_queued_asset_event_waiting": (["dag_id", "asset_id", "asset_event_id"], "run_pk IS NULL"),
}


def upgrade() -> None:
    """Replace the key. SQLite stores the rows by it, so there the table is written anew."""
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("pk_queued_asset_event", "queued_asset_event")
        op.create_primary_key(
            "pk_queued_asset_event", "queued_asset_event", ["asset_event_id", "dag_id"]
        )
        return
    for name in INDEXES:
        op.drop_index(name, "queued_asset_event")
    op.rename_table("queued_asset_event", "queued_asset_event_by_dag")
    op.create_table(
        "queued_asset_event",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("asset_event_id", BIG_ID, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("run_pk", BIG_ID, nullable=True),
        sa.PrimaryKeyConstraint("asset_event_id", "dag_id", name=op.f("pk_queued_asset_event")),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id, run_pk) "
        "SELECT dag_id, asset_event_id, asset_id, run_pk FROM queued_asset_event_by_dag "
        "ORDER BY asset_event_id, dag_id"
    )
    op.drop_table("queued_asset_event_by_dag")
    for name, (columns, where) in INDEXES.items():
        op.create_index(
            name, "queued_asset_event", columns, unique=False, sqlite_where=sa.text(where)
        )
