"""A command with an unknown name ends with exit code 1, and suggests the name that is probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.commands import run_command
from tests.store.seeding import NOW, add_asset, add_dag, add_stream
from triggerer.cli.terminal.session import with_database
from triggerer.domain.events import Fence
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import DagRun, Trigger, Watcher

STREAM = Fence("stream", "owner", 1)


async def seed(database: Database) -> None:
    """A DAG with a run, and its asset with a watcher."""
    await add_asset(database, 1, "orders")
    await add_dag(database, "orders_daily", None, assets=[1])
    await add_stream(database, STREAM)
    async with database.transaction() as session:
        session.add(
            DagRun(
                id=1,
                dag_id="orders_daily",
                run_id="first_load",
                run_type="manual",
                state="success",
                run_after=NOW,
                queued_at=NOW,
                params={},
            )
        )
        session.add(
            Trigger(
                id=1,
                digest="t",
                classpath="x.T",
                kwargs={},
                stream_digest=STREAM.stream_digest,
            )
        )
        await session.flush()
        session.add(
            Watcher(
                asset_id=1, name="inbox", trigger_id=1, state="running", updated_at=NOW, path="a.py"
            )
        )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("unknown") / "triggerer.toml"
    file.write_text('[core]\nhome = "."\ndags_folder = "."\n')
    done = run_command("db", "migrate", "--config", str(file), cwd=file.parent)
    assert done.returncode == 0, done.stderr
    with_database(file, seed)
    return file


DAG = "there is no DAG 'order_daily'\n  hint: did you mean 'orders_daily'?\n"
ASSET = "there is no asset 'order'\n  hint: did you mean 'orders'?\n"
RUN = "the DAG 'orders_daily' has no run 'first_lod'\n  hint: did you mean 'first_load'?\n"
WATCHER = "the asset 'orders' has no watcher 'inbx'\n  hint: did you mean 'inbox'?\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("dags show order_daily", DAG),
        ("dags show ORDERS_DAILY", DAG.replace("order_daily", "ORDERS_DAILY")),
        ("dags pause order_daily", DAG),
        ("dags trigger order_daily", DAG),
        ("dags test order_daily", "there is no DAG 'order_daily'\n"),
        ("dags list --dag order_daily", DAG),
        ("dags list --asset order", ASSET),
        ("dags backfill --list --dag order_daily", DAG),
        ("dags backfill order_daily --from 2026-01-01 --to 2026-01-02", DAG),
        ("runs list --dag order_daily", DAG),
        ("runs list --dag order_daily --json", DAG),
        ("runs list --asset order", ASSET),
        ("runs list --dag orders_daily --asset order", ASSET),
        ("runs show orders_daily first_lod", RUN),
        ("runs show order_daily first_load", DAG),
        ("runs logs orders_daily first_lod", RUN),
        ("runs cancel orders_daily first_lod", RUN),
        ("runs retry orders_daily first_lod", RUN),
        ("runs clear orders_daily first_lod", RUN),
        ("assets list --asset order", ASSET),
        ("assets events --dag order_daily", DAG),
        ("assets queued list --asset x-test://order", ASSET.replace("order'", "x-test://order'")),
        ("assets queued delete --asset order", ASSET),
        ("watchers show orders/inbx", WATCHER),
        ("watchers show order inbox", ASSET),
        ("watchers replay orders/inbx --from earliest", WATCHER),
        ("watchers parked list --watcher orders/inbx", WATCHER),
        ("watchers parked discard --watcher order/inbox", ASSET),
        ("why orders_daily first_lod", RUN),
        ("why-not order_daily", DAG),
        ("plan --dags-folder . --dag order_daily", DAG),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_the_one_that_is_meant(
    config: Path, command: str, said: str
) -> None:
    done = run_command(*command.split(), "--config", str(config), cwd=config.parent)
    assert (done.returncode, done.stdout) == (1, "")
    if "x-test://order" in command:
        said = said.replace("'orders'", "'x-test://orders'")
    assert done.stderr.startswith(f"triggerer: {said}")


def test_a_name_like_no_other_is_refused_with_all_there_are(config: Path) -> None:
    done = run_command("runs", "list", "--dag", "nope", "--config", str(config))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "triggerer: there is no DAG 'nope'\n  hint: known: orders_daily\n"


@pytest.mark.parametrize(
    "command",
    [
        "runs list --dag orders_daily --state failed",
        "runs list --asset orders",
        "watchers parked list --watcher orders/inbox",
        "assets events --asset x-test://orders",
        "assets queued list --dag orders_daily --asset orders",
    ],
)
def test_filters_that_name_what_there_is_may_find_nothing(config: Path, command: str) -> None:
    done = run_command(*command.split(), "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("No ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "runs list --state sucess",
            "--state is one of queued, running, success, failed, cancelled, not 'sucess'; did you mean 'success'?",
        ),
        (
            "dags list --state pause",
            "--state is one of active, paused, stale, not 'pause'; did you mean 'paused'?",
        ),
        (
            "dags trigger orders_daily --params n=1",
            """--params takes a JSON object such as '{"n": 1}', not 'n=1'""",
        ),
        (
            "dags trigger orders_daily --params n=1,day=monday",
            """--params takes a JSON object such as '{"n": 1, "day": "monday"}', not 'n=1,day=monday'""",
        ),
        (
            "dags test orders_daily --params 3",
            """--params takes a JSON object such as '{"name": "value"}', not '3'""",
        ),
        (
            "dags trigger orders_daily --params {n",
            """--params takes a JSON object such as '{"name": "value"}', not '{n': Expecting property name""",
        ),
        (
            "assets emit orders --extra n=1",
            """--extra takes JSON such as '{"n": 1}', not 'n=1'""",
        ),
    ],
)
def test_a_value_that_an_option_does_not_take_is_shown_beside_one_that_it_takes(
    config: Path, command: str, said: str
) -> None:
    done = run_command(*command.split(), "--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"triggerer: {said}")
