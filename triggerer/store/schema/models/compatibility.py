"""Which releases still work with the tables."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, UtcDateTime


class SchemaCompat(Base):
    """An after-migration, and the newest migration that a release must contain to work with the resulting tables.

    The row is written before the after-migration runs. From then on, a service whose release lacks the migration
    `min_revision` does not start. If such a service is running, it stops.
    """

    __tablename__ = "schema_compat"

    revision: Mapped[str] = mapped_column(String(32), primary_key=True)
    """The after-migration."""
    min_revision: Mapped[str] = mapped_column(String(32))
    """A release works with the tables if it contains this migration or a later one."""
    release: Mapped[str] = mapped_column(String(40))
    """The release that ran the migration. Errors name it to users as a release that is new enough."""
    required_at: Mapped[datetime] = mapped_column(UtcDateTime)
