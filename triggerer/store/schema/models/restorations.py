"""The times when the database was restored from a backup."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId, UtcDateTime


class Restoration(Base):
    """A restore from a backup, as an operator reported it with `triggerer db restored`."""

    __tablename__ = "restoration"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    start: Mapped[datetime] = mapped_column(UtcDateTime)
    """Logs are read again from this instant on."""
    restored_at: Mapped[datetime] = mapped_column(UtcDateTime)
    files_read_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When all DAG files had been read after the restore. None: some are still to be read.

    The backup lacks watchers that were declared after it was made. So until all files are read, each added watcher is
    rewound to `start`, like the watchers in the backup.
    """
