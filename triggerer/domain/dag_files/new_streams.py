"""How long a stream that was never read stays closed. No I/O.

Who opens a stream commits what its watchers have resolved. A watcher that is declared later, because its file takes
longer to read, would never see those messages. So a new stream waits until the files that were seen have been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import datetime, timedelta


def closings(
    never_read: Mapping[str, datetime | None],
    *,
    new: Set[str],
    is_reading: bool,
    is_start: bool,
    now: datetime,
    limit: timedelta,
) -> dict[str, datetime | None]:
    """Return what changes: until when a stream is closed, by digest; None: it may be opened.

    Args:
        never_read: All streams that nobody has opened yet, and until when each is closed. Others are never closed.
        new: Those of them that are declared at this moment.
        is_reading: Whether a file that was seen, and is new or has changed, has not been read yet.
        is_start: Whether files are read for the first time since the DAG processor started: it may have ended before it
            had read them all.
        now: The database's time.
        limit: For no longer, so that a DAG processor that hangs or has died keeps no stream closed for ever.
    """
    if not is_reading:
        return {digest: None for digest, until in never_read.items() if until is not None}
    closing = never_read.keys() if is_start else new & never_read.keys()
    return dict.fromkeys(closing, now + limit)


def may_open(closed_until: datetime | None, now: datetime) -> bool:
    """Whether the stream may be opened."""
    return closed_until is None or closed_until <= now
