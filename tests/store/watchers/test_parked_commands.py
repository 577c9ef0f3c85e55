"""`triggerer watchers parked discard`, from the command line to the rows."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from tests.store.seeding import NOW, add_asset
from triggerer.cli.app import app
from triggerer.errors import TriggererError
from triggerer.store.database.opening import open_database
from triggerer.store.schema.models import ParkedBody, ParkedMessage, Watcher


async def park(url: str) -> None:
    """Park four messages for the watcher `first` (ids 1 to 4), and the last of them also for `second` (id 5)."""
    async with open_database(url) as database:
        await add_asset(database, 1, "orders")
        async with database.transaction() as session:
            for number, name in enumerate(("first", "second"), 1):
                session.add(Watcher(id=number, asset_id=1, name=name, path="x.py", updated_at=NOW))
            for number in range(1, 5):
                session.add(
                    ParkedBody(
                        id=number,
                        stream_digest="s",
                        idempotency_key=f"{number}",
                        data=b"{}",
                        size_bytes=2,
                    )
                )
            await session.flush()
            for number in range(1, 6):
                body = min(number, 4)
                session.add(
                    ParkedMessage(
                        id=number,
                        watcher_id=1 if number < 5 else 2,
                        body_id=body,
                        lane="0",
                        idempotency_key=f"{body}",
                        state="kept" if number == 2 else "set_aside",
                        failures=0,
                        parked_at=NOW,
                    )
                )


async def count_bodies(url: str) -> int:
    async with open_database(url) as database, database.reading() as session:
        return await session.scalar(select(func.count()).select_from(ParkedBody)) or 0


class Shell:
    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(
            app, ["watchers", "parked", *arguments], env={"TRIGGERER__DATABASE__URL": self.url}
        )

    def left(self) -> list[int]:
        return [one["id"] for one in json.loads(self.run("list", "--json").output)]


@pytest.fixture
def shell(store_url: str) -> Shell:
    anyio.run(park, store_url)
    return Shell(store_url)


def test_only_discarded_messages_are_gone(shell: Shell) -> None:
    assert shell.run("discard", "1", "2").output == "discarded: 2 messages\n"
    assert shell.left() == [3, 4, 5]
    assert json.loads(shell.run("discard", "--watcher", "orders/first", "--json").output) == {
        "discarded": 2
    }
    assert shell.left() == [5]
    assert anyio.run(count_bodies, shell.url) == 1, "those of a message that another has"
    assert shell.run("discard", "--all").output == "discarded: 1 message\n"
    assert shell.left() == []
    assert anyio.run(count_bodies, shell.url) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "--all"),
        (["1", "--all"], 2, "--all"),
        (["1", "--watcher", "orders/first"], 2, "--all"),
        (["--watcher", "orders"], 2, "ASSET/NAME"),
        (["1", "9"], 1, "no message 9 is parked"),
        (["--watcher", "orders/third"], 1, "has no watcher 'third'"),
    ],
)
def test_a_choice_that_names_no_message_discards_none(
    shell: Shell, arguments: list[str], code: int, said: str
) -> None:
    ran = shell.run("discard", *arguments)
    assert ran.exit_code == code
    if code == 1:
        assert isinstance(ran.exception, TriggererError)
        assert said in str(ran.exception)
    else:
        assert said in ran.output
    assert shell.left() == [1, 2, 3, 4, 5]
