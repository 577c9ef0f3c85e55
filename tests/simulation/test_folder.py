"""`triggerer simulate` with users' own files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from triggerer.cli.app import app
from triggerer.testing.simulation.failing_filters import may_explain

DAGS = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger

orders = Asset("orders", watchers=[
    AssetWatcher("all", KafkaEventTrigger("orders")),
    AssetWatcher("created", KafkaEventTrigger("orders", match={"value.type": "created"})),
    AssetWatcher("keyed", KafkaEventTrigger("orders", match={"@key": "a", "@headers.from": "b"})),
])
lines = Asset("lines", watchers=[AssetWatcher("text", KafkaEventTrigger("lines", decode="text"))])

with DAG("both", schedule=orders & lines):
    @task
    def show(): ...
    show()

with DAG("by_hand", schedule=None):
    @task
    def show(): ...
    show()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "dags"
    made.mkdir()
    (made / "orders.py").write_text(DAGS)
    return made


def simulate(folder: Path, *options: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, ["simulate", "--dags-folder", str(folder), *options])
    return ran.exit_code, ran.output


def test_users_filters_and_expressions_are_run(folder: Path) -> None:
    code, told = simulate(folder, "--seeds", "3", "--steps", "500")
    assert code == 0, told
    assert "left out: DAG by_hand: its schedule is not an expression of assets" in told
    assert "3 seeds kept every promise" in told


def test_filters_for_messages_of_other_brokers_find_their_fields(folder: Path) -> None:
    (folder / "orders.py").write_text(
        DAGS.replace(
            'KafkaEventTrigger("lines", decode="text")',
            """SqsEventTrigger("lines", decode="text", extra={"id": "@message_id", "q": "@queue"})""",
        ).replace(
            "from watchers.kafka", "from watchers.sqs import SqsEventTrigger\nfrom watchers.kafka"
        )
    )
    code, told = simulate(folder, "--seeds", "2", "--steps", "300")
    assert code == 0, told
    assert "2 seeds kept every promise" in told


NOTING = """
import os
from pathlib import Path
from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, SharedStreamProducer, task

class Noting(BaseEventTrigger):
    def __init__(self, file):
        self.file = file
    def serialize(self):
        return f"{__name__}.Noting", {"file": self.file}
    def shared_stream_key(self):
        return ("noting", self.file)
    async def filter_shared_stream(self, shared_stream):
        with Path(self.file).open("a") as file:
            file.write(f"{os.getpid()}\\n")
        async for event in shared_stream:
            if False:
                yield event

noted = Asset("noted", watchers=[AssetWatcher("noting", Noting(FILE))])
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_seeds_run_in_as_many_processes_as_are_asked_for(tmp_path: Path, jobs: int) -> None:
    (tmp_path / "dags").mkdir()
    noted = tmp_path / "noted"
    # A process loads a module of this name only once, even from different folders.
    (tmp_path / "dags" / f"noting_{jobs}.py").write_text(NOTING.replace("FILE", repr(str(noted))))
    options = ("--seeds", "20", "--steps", "50", "--jobs", str(jobs))
    code, told = simulate(tmp_path / "dags", *options)
    assert code == 0, told
    assert "20 seeds kept every promise" in told
    processes = set(noted.read_text().split())
    if jobs == 1:
        assert processes == {str(os.getpid())}
    else:
        assert 1 <= len(processes) <= jobs
        assert str(os.getpid()) not in processes


def test_messages_are_taken_from_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "messages").write_text("not JSON\n")
    options = ("--replay", "9", "--steps", "500", "--messages", str(tmp_path / "messages"))
    code, told = simulate(folder, *options)
    assert code == 0, told
    # Each of the three watchers that read JSON rejects a message that is not JSON.
    assert "message=orders/all/0/0" in told  # by the name of the stream's first watcher
    assert "rejected=3" in told


def test_a_folder_without_shared_streams_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    code, _ = simulate(tmp_path)
    assert code == 1


FILES = """
from triggerer import Asset, AssetWatcher
from watchers.directory import DirectoryFileDeleteTrigger, FileDeleteTrigger

ready = Asset("ready", watchers=[
    AssetWatcher("in_directory", DirectoryFileDeleteTrigger("/tmp/in", "go")),
    AssetWatcher("alone", FileDeleteTrigger("/tmp/in/go")),
])
"""


def test_a_watcher_of_files_is_left_out_with_the_reason(folder: Path) -> None:
    (folder / "files.py").write_text(FILES)
    code, told = simulate(folder, "--start", "2", "--seeds", "1", "--steps", "200")
    assert code == 0, told
    reads = "reads Sighting or FoundFile, but the simulation has only messages of brokers"
    assert f"left out: watcher ready/in_directory: DirectoryFileDeleteTrigger {reads}" in told
    assert f"left out: watcher ready/alone: FileDeleteTrigger {reads}" in told
    assert "seeds kept every promise" in told


def test_a_folder_of_watchers_of_files_alone_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "files.py").write_text(FILES)
    ran = CliRunner().invoke(app, ["simulate", "--dags-folder", str(tmp_path)])
    assert ran.exit_code == 1
    assert "reads messages of a shared stream" in str(ran.exception)


RAISING = """
from triggerer import Asset, AssetWatcher, BaseEventTrigger, TriggerEvent

class Raising{number}(BaseEventTrigger):
    def serialize(self):
        return f"{{__name__}}.Raising{number}", {{}}
    def shared_stream_key(self):
        return "raising"
    async def filter_shared_stream(self, shared_stream):
        async for message in shared_stream:
            yield TriggerEvent({reads})

raised = Asset("raised", watchers=[AssetWatcher("careless", Raising{number}())])
"""


@pytest.mark.parametrize(
    ("number", "reads", "error", "share"),
    [
        (1, "message.valeu", "AttributeError: 'BrokerMessage' object has no attribute", "each of"),
        (2, 'message.json()["id"]', "Error: ", " of "),
    ],
)
def test_a_filter_that_raises_is_named_by_its_error_instead_of_a_broken_promise(
    tmp_path: Path, number: int, reads: str, error: str, share: str
) -> None:
    (tmp_path / f"raising_{number}.py").write_text(RAISING.format(number=number, reads=reads))
    code, told = simulate(tmp_path, "--seeds", "40", "--steps", "200", "--jobs", "1")
    assert code == 1, told
    assert "has no verdict, because one of your filters raises" in told
    assert "the filter of watcher raised/careless raised " in told
    assert error in told
    assert share in told
    assert "L1" not in told


def test_a_filter_cannot_explain_a_broken_promise_of_safety() -> None:
    assert may_explain("L1")
    assert not any(may_explain(rule) for rule in ("S1", "S2/S7", "S8", "S13", "T1", "P1"))
