"""When DAGs are due, what bounds their runs, and partition keys. Before: the release before leaves all of it as it is.

A column that it does not know has a default: a DAG is never due by the clock, and an event or a run has no key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
NEVER = "9999-01-01 00:00:00.000000"
AUTOMATED = sa.text("logical_date IS NOT NULL AND run_type IN ('scheduled', 'asset_triggered')")


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), server_default="0", nullable=False)


def upgrade() -> None:
    """Add the columns, and the index of the runs that a timetable has asked for: there are none."""
    for name in ("start_date", "end_date"):
        op.add_column("dag", sa.Column(name, INSTANT, nullable=True))
    op.add_column("dag", _flag("catchup"))
    for name in ("min_run_gap", "quiet_period"):
        op.add_column("dag", sa.Column(name, sa.Double(), nullable=True))
    op.add_column("dag", _flag("depends_on_past"))
    op.add_column("dag", _number("priority"))
    op.add_column("dag", sa.Column("pools", sa.Text(), nullable=True))
    op.add_column("dag", sa.Column("next_run_after", INSTANT, server_default=NEVER, nullable=False))
    for name in ("next_interval_start", "next_interval_end", "last_run_at"):
        op.add_column("dag", sa.Column(name, INSTANT, nullable=True))
    op.create_index("ix_dag_next_run_after", "dag", ["next_run_after"], unique=False)
    op.add_column("asset_event", sa.Column("partition_key", sa.Text(), nullable=True))
    op.add_column("dag_run", sa.Column("partition_key", sa.Text(), nullable=True))
    op.add_column("dag_run", _number("priority"))
    op.add_column("dag_run", sa.Column("pools", sa.Text(), nullable=True))
    op.create_index(
        "ix_dag_run_automated",
        "dag_run",
        ["dag_id", "run_after"],
        unique=False,
        sqlite_where=AUTOMATED,
        postgresql_where=AUTOMATED,
    )
