"""Creates and drops indexes on tables that may be large, without blocking the services.

PostgreSQL refuses CONCURRENTLY in a transaction. So only a migration with `is_concurrent = True`, which runs without a
transaction, may call these functions. If such a migration is interrupted, it runs again from its beginning.
"""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from alembic import context, op

# True if the index is invalid. An interrupted CREATE INDEX CONCURRENTLY leaves an invalid index, which every write
# maintains and no query uses.
_IS_INVALID: Final = sa.text(
    "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:name) AND NOT indisvalid)"
)


def create_index(name: str, table: str, columns: Sequence[str], **options: Any) -> None:
    """Create an index, unless an earlier attempt has completed it. Writers are not blocked.

    Args:
        options: As for `alembic.op.create_index`.
    """
    if _is_invalid(name):
        drop_index(name, table)
    op.create_index(
        name, table, columns, if_not_exists=True, postgresql_concurrently=True, **options
    )


def drop_index(name: str, table: str) -> None:
    """Drop an index if it exists. Readers and writers are not blocked."""
    op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)


def _is_invalid(name: str) -> bool:
    if context.is_offline_mode() or op.get_context().dialect.name != "postgresql":
        return False
    return bool(op.get_bind().scalar(_IS_INVALID, {"name": name}))
