"""A release that does not exist: this release's migrations, and a few more."""

import shutil
from pathlib import Path

from triggerer.store.schema.migrations import THIS_RELEASE, Migrations

_SCRIPT = """
import sqlalchemy as sa
from alembic import op
from triggerer.store.schema.migrations import indexes

revision = "{revision}"
down_revision = "{former}"
branch_labels = None
depends_on = None
{attributes}

def upgrade() -> None:
    {body}
"""
_FORMER = THIS_RELEASE.newest
_NUMBER = int(_FORMER[:4])
COLUMN = f"{_NUMBER + 1:04}_before_note"
INDEX = f"{_NUMBER + 2:04}_before_index"
REMOVAL = f"{_NUMBER + 3:04}_after_description"
_BODIES = {
    COLUMN: 'op.add_column("dag_file", sa.Column("note", sa.Text(), nullable=True))',
    INDEX: 'indexes.create_index("ix_dag_run_error", "dag_run", ["error"])',
    REMOVAL: 'op.drop_column("dag", "description")',
}


def next_release(folder: Path) -> Migrations:
    """Return the migrations of a release that adds a column and an index, and then removes a column."""
    return invented_release(folder, _BODIES)


def invented_release(folder: Path, bodies: dict[str, str]) -> Migrations:
    """Return this release's migrations and further ones, by name and body. Migrations with indexes are concurrent."""
    folder.mkdir(parents=True)
    for revision in THIS_RELEASE.revisions:
        shutil.copy(THIS_RELEASE.folder / f"{revision}.py", folder)
    former = _FORMER
    for revision, body in bodies.items():
        attributes = "is_concurrent = True" if "indexes." in body else ""
        script = _SCRIPT.format(revision=revision, former=former, body=body, attributes=attributes)
        (folder / f"{revision}.py").write_text(script)
        former = revision
    return Migrations(folder)
