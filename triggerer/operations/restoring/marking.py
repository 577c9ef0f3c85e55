"""Tells the service that its database was restored from a backup, while the brokers were not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from triggerer.domain.actors import Actor
from triggerer.domain.instants import readable
from triggerer.errors import MoveRefused, TriggererError
from triggerer.operations.audit import Action, record
from triggerer.processes.instance_ids import is_known_dead
from triggerer.store.database.sqlite.exclusive import lock_exclusively
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.streams.leases import all_live_instances
from triggerer.store.streams.marks import begin_incarnation
from triggerer.store.watchers.restored import RestoredWatcher, begin_restoration, set_back_watchers


@dataclass(frozen=True, slots=True)
class Restored:
    """The restored database, and its watchers with the instants from which they read their logs again."""

    database: str
    backup_time: datetime
    start: datetime
    """Logs are read again from this instant on."""
    watchers: tuple[RestoredWatcher, ...]


async def mark_restored(
    database: Database, actor: Actor, backup_time: datetime, *, margin: timedelta
) -> Restored:
    """Set watchers back to `margin` before the time of the backup. The service must be stopped.

    At the next start of the service, each watcher of a log, such as a Kafka topic, reads the messages from that time on
    again. A message that has an event creates no second event. If a cleaning has deleted events from that time on, the
    watcher is set back only to the end of the deleted events. Otherwise the messages would create these events again.

    A repeated call can set the watchers back further, but not forward.

    Args:
        backup_time: When the backup started.
        margin: Covers messages that were published before the backup started, but not processed by then.
    Raises:
        TriggererError: `backup_time` is in the future, or `margin` reaches back before the year 1.
        ConfigurationError, MoveRefused: A service uses the database.
    """
    try:
        start = backup_time - margin
    except OverflowError as error:
        raise TriggererError(
            f"the margin of {margin.days:,} days reaches back before the year 1",
            hint="a margin covers hours or days, such as PT6H or 2d",
        ) from error
    with lock_exclusively(database, purpose="triggerer db restored"):
        async with database.transaction() as session:
            now = await database_now(session)
            if backup_time > now:
                raise TriggererError(
                    f"{readable(backup_time)} is still to come: it is {readable(now)} now"
                )
            if database.dialect != "sqlite":
                # On SQLite the lock is enough.
                _refuse_if_used(await all_live_instances(session))
            watchers = await set_back_watchers(session, start, now=now)
            await begin_restoration(session, start, now=now)
            await begin_incarnation(session)
            after = {"backup_time": backup_time.isoformat(), "start": start.isoformat()}
            await record(session, actor, Action.DATABASE_RESTORED, "database", after=after)
    return Restored(database.name, backup_time, start, tuple(watchers))


def _refuse_if_used(instances: Iterable[str]) -> None:
    """Raise an error unless the processes of all these instances are known to be gone, see `is_known_dead`."""
    alive = next((one for one in instances if not is_known_dead(one)), None)
    if alive is not None:
        raise MoveRefused(
            f"the service {alive} uses the database",
            hint="stop every service; a service that was killed on another host or in another container, or that only"
            " the backup has, counts until its registration expires (within 60 s by default)",
        )
