"""`triggerer watchers replay`, from the command line to the row of the watcher."""

from __future__ import annotations

import anyio
import pytest
from typer.testing import CliRunner

from tests.store.seeding import FENCE, NOW, add_asset, add_stream
from triggerer.cli.app import app
from triggerer.store.database.opening import open_database
from triggerer.store.schema.models import Trigger, Watcher


async def add_watcher(url: str) -> None:
    async with open_database(url) as database:
        await add_asset(database, 1, "big orders")
        await add_stream(database)
        async with database.transaction() as session:
            digest = FENCE.stream_digest
            session.add(Trigger(id=1, digest="t", classpath="x.T", kwargs={}, stream_digest=digest))
            await session.flush()
            session.add(
                Watcher(id=1, asset_id=1, name="w", trigger_id=1, path="x.py", updated_at=NOW)
            )


@pytest.mark.parametrize(
    ("start", "shown"),
    [("earliest", "the earliest message"), ("2026-11-24 12:00Z", "2026-11-24 12:00:00Z")],
)
def test_a_replay_is_only_asked_for_and_the_command_says_where_its_failure_is_shown(
    store_url: str, start: str, shown: str
) -> None:
    anyio.run(add_watcher, store_url)
    done = CliRunner().invoke(
        app,
        ["watchers", "replay", "big orders/w", "--from", start],
        env={"TRIGGERER__DATABASE__URL": store_url},
    )
    assert done.exit_code == 0
    assert done.stdout == f"big orders/w: asked to read again from {shown} on\n"
    assert done.stderr == (
        "if the replay cannot start, `triggerer watchers show 'big orders/w'` says why\n"
    )
