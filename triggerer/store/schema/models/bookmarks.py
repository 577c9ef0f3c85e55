"""The bookmarks of watchers whose triggers have no shared stream."""

from __future__ import annotations

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, BigId


class WatcherBookmark(Base):
    """The last bookmark of a watcher, written in one transaction with the trigger's events.

    The row stays as long as the watcher's row. If a deleted watcher is declared again, it continues from its bookmark.
    """

    __tablename__ = "watcher_bookmark"

    watcher_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("watcher.id"), primary_key=True, autoincrement=False
    )
    classpath: Mapped[str] = mapped_column(Text)
    """The class path of the trigger that stored the bookmark. A trigger of another class does not get the bookmark."""
    change: Mapped[str] = mapped_column(String(32))
    """The id of the last change of the bookmark.

    The next change must name this id as its predecessor, or the store refuses the change. So a trigger cannot overwrite
    a change that it does not know.
    """
    value: Mapped[str] = mapped_column(Text)
    """JSON text. It may be a single number, which a `Json` column must not contain."""
