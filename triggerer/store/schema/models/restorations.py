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

    A watcher that was declared after the backup was made is missing from the backup. So until all files are read, each
    watcher that is added is rewound to `start`, like the watchers in the backup.
    """
