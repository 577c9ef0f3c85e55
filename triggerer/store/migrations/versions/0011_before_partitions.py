"""What has come for the partition keys of DAGs. Before: the release before refuses DAGs that are scheduled by them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True)
KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
WAITING = sa.text("run_pk IS NULL")
TAKEN = sa.text("run_pk IS NOT NULL")


def _of_dag(*more: SchemaItem) -> list[SchemaItem]:
    return [
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("partition_key", KEY, nullable=False),
        *more,
    ]


def upgrade() -> None:
    """Add the tables, without rows."""
    op.create_table(
        "dag_partition",
        *_of_dag(
            sa.Column("due_at", INSTANT, nullable=False),
            sa.Column("newest_at", INSTANT, nullable=False),
            sa.Column("runs", sa.Integer(), nullable=False),
            sa.ForeignKeyConstraint(
                ["dag_id"], ["dag.dag_id"], name=op.f("fk_dag_partition_dag_id_dag")
            ),
            sa.PrimaryKeyConstraint("dag_id", "partition_key", name=op.f("pk_dag_partition")),
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_dag_partition_due", "dag_partition", ["dag_id", "due_at", "partition_key"])
    op.create_table(
        "dag_partition_part",
        *_of_dag(
            sa.Column("asset_id", BIG_ID, autoincrement=False, nullable=False),
            sa.Column("part", KEY, nullable=False),
            sa.Column("first_at", INSTANT, nullable=False),
            sa.PrimaryKeyConstraint(
                "dag_id", "partition_key", "asset_id", "part", name=op.f("pk_dag_partition_part")
            ),
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "dag_partition_event",
        *_of_dag(
            sa.Column("asset_event_id", BIG_ID, autoincrement=False, nullable=False),
            sa.Column("asset_id", BIG_ID, nullable=False),
            sa.Column("run_pk", BIG_ID, nullable=True),
            sa.PrimaryKeyConstraint(
                "dag_id", "partition_key", "asset_event_id", name=op.f("pk_dag_partition_event")
            ),
        ),
        sqlite_with_rowid=False,
    )
    for name, columns, where in (
        ("waiting", ["dag_id", "partition_key", "asset_id", "asset_event_id"], WAITING),
        ("run", ["run_pk", "asset_id", "asset_event_id"], TAKEN),
    ):
        op.create_index(
            f"ix_dag_partition_event_{name}",
            "dag_partition_event",
            columns,
            sqlite_where=where,
            postgresql_where=where,
        )
