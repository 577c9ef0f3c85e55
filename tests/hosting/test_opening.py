"""A host opens a new stream once the DAGs folder has been read, or at the latest at the stream's `closed_until`."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import update

from tests.hosting.test_host import declare, hosting, owners
from tests.store.seeding import until
from tests.unit.streams.streams import Upstream
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.schema.models import Stream


async def set_closed(database: Database, for_: timedelta | None) -> None:
    async with database.transaction() as session:
        until_: datetime | None = None
        if for_ is not None:
            until_ = await database_now(session) + for_
        await session.execute(update(Stream).values(closed_until=until_))
        announce(session, Signal.STREAMS_CHANGED, "stream")


async def test_messages_that_waited_go_to_the_watchers_of_all_files(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "quick", upstream)
    await set_closed(database, timedelta(hours=1))
    upstream.put(1, 2, 3)
    async with hosting(database):
        # When the host has opened another stream, it has looked at the closed stream too.
        other = Upstream(f"{upstream.name} other")
        await declare(database, "other", other, stream="other")
        other.put(1)
        await until(lambda: bool(other.outcomes()))
        assert await owners(database) == {"stream": None, "other": "me"}
        await declare(database, "slow", upstream)
        await set_closed(database, None)
        await until(lambda: len(upstream.outcomes()) == 3)
        assert upstream.outcomes() == dict.fromkeys((1, 2, 3), (2, 0, 0))


async def test_a_stream_is_opened_after_a_while_though_nobody_says_so(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "quick", upstream)
    await set_closed(database, timedelta(seconds=1))
    upstream.put(1)
    async with hosting(database):
        assert await owners(database) == {"stream": None}
        await until(lambda: upstream.outcomes() == {1: (1, 0, 0)})
