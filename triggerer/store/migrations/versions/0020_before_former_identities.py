"""Former names and URIs of assets. Before: the release before does not read them, and shows the present ones."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE = "asset_former_identity"


def upgrade() -> None:
    """Add the table, without rows: nobody knows the identities that older events had."""
    op.create_table(
        TABLE,
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("last_event_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["asset_id"], ["asset.id"], name=op.f(f"fk_{TABLE}_asset_id_asset")
        ),
        sa.PrimaryKeyConstraint("asset_id", "last_event_id", name=op.f(f"pk_{TABLE}")),
        sqlite_with_rowid=False,
    )
    for column in ("name", "uri"):
        op.create_index(op.f(f"ix_{TABLE}_{column}"), TABLE, [column], unique=False)
