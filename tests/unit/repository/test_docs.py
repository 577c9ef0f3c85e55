"""The examples of the documentation run, and its lists agree with the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import orjson
import pytest

from producers.http.settings import HttpSettings
from producers.kafka.settings import KafkaSettings
from producers.pubsub.settings import PubSubSettings
from producers.servicebus.settings import ServiceBusSettings
from producers.sqs.settings import SqsSettings
from triggerer.abc import BrokerMessage
from triggerer.config import SECTIONS, load_settings, written_age
from triggerer.dag_processing import parse_once
from triggerer.domain.authoring.arguments import CONTEXT_ARGUMENTS
from triggerer.domain.tasks import OPTION_NAMES
from triggerer.pluginkit.matching import _OPERATORS
from triggerer.pluginkit.message_trigger import MessageTrigger
from watchers.kafka import KafkaEventTrigger
from watchers.pubsub import PubSubEventTrigger
from watchers.servicebus import ServiceBusEventTrigger
from watchers.sqs import SqsEventTrigger

MESSAGE_TRIGGERS: tuple[type[MessageTrigger], ...] = (KafkaEventTrigger,)
SETTINGS: Mapping[str, Any] = {
    "http": HttpSettings,
    "pubsub": PubSubSettings,
    "servicebus": ServiceBusSettings,
    "sqs": SqsSettings,
}
"""Settings by the name of a connection. Connections with other names are Kafka's."""
ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.rglob("*.md")),
]
BROKER_EXAMPLES = DOCS / "examples" / "brokers"
ELSEWHERE = {"airflow-triggers.md", "simulation.md", "write-a-plugin.md"}
"""Pages whose examples the tests here leave out, because they need Airflow, an installed package or the simulation."""

FOREIGN_FILES = {
    ".jobs/report.py",
    ".py",
    "a/b.py",
    "dags/orders.py",
    "dags/totals.py",
    "java_gateway.py",
}
FOREIGN_FOLDERS = {"in/", "invoices/", "orders/"}
"""Files and folders of users and of libraries, which the prose names."""
SOURCES = [
    *PAGES,
    *(
        file
        for package in ("producers", "triggerer", "watchers")
        for file in (ROOT / package).rglob("*.py")
    ),
]

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?!\w+:)([^)#]*)(?:#([^)]+))?\)")


class Example(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    text: str

    @property
    def name(self) -> str:
        # Two folders may each have a page of one name.
        return f"{self.page.parent.name}_{self.page.stem}_{self.line}"


def examples(language: str) -> Iterator[Example]:
    """The code blocks of a language on all pages, except blocks that import Airflow."""
    for page in PAGES:
        whole = page.read_text()
        for match in _BLOCK.finditer(whole):
            if match[2] == language and "from airflow" not in match[3]:
                yield Example(page, whole.count("\n", 0, match.start()) + 2, dedent(match[3]))


def rows_under(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its own header."""
    lines = page.read_text().splitlines()
    below = lines[lines.index(heading) + 1 :]
    start = next(number for number, line in enumerate(below) if line.startswith("|"))
    table = list(takewhile(lambda line: line.startswith("|"), below[start:]))
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        for line in table[2:]
    ]


async def test_python_examples_are_dag_files_without_errors_and_warnings(tmp_path: Path) -> None:
    shown = [example for example in examples("python") if example.page.name not in ELSEWHERE]
    assert {example.page.name for example in shown} >= {
        "README.md",
        "dags.md",
        "kafka.md",
        "watchers.md",
    }
    for example in shown:
        (tmp_path / f"{example.name}.py").write_text(example.text)
    parsed = await parse_once(tmp_path)
    # Two pages may use one name for different assets, so check each file alone.
    problems = {file.path: [*map(str, (*file.errors, *file.warnings))] for file in parsed.files}
    assert problems == {f"{example.name}.py": [] for example in shown}


async def test_the_examples_of_brokers_are_a_dags_folder_without_errors_and_warnings() -> None:
    parsed = await parse_once(BROKER_EXAMPLES)
    problems = {file.path: [*map(str, (*file.errors, *file.warnings))] for file in parsed.files}
    assert problems == {f"{name}.py": [] for name in ("kafka", "pubsub", "servicebus", "sqs")}


def s3_records(*keys: str) -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": "landing"}, "object": {"key": key, "size": 12}},
            }
            for key in keys
        ]
    }


def object_of_gcs(key: str) -> dict[str, str]:
    return {"eventType": "OBJECT_FINALIZE", "payloadFormat": "NONE", "bucketId": "landing"} | {
        "objectId": key
    }


def blob(key: str) -> dict[str, Any]:
    return {
        "eventType": "Microsoft.Storage.BlobCreated",
        "subject": f"/blobServices/default/containers/scans/blobs/{key}",
        "data": {"api": "PutBlob", "url": f"https://shop.blob.core.windows.net/scans/{key}"},
    }


@pytest.mark.parametrize(
    ("watcher", "value", "attributes", "found"),
    [
        ("orders", {"amount": 1, "day": "2026-11-22"}, {}, ["2026-11-22"]),
        ("orders", {"amount": -1, "day": "2026-11-22"}, {}, []),
        ("refunds", {"amount": -1}, {}, [None]),
        (
            "arrived_in_s3",
            s3_records("in/a+b.json", "in/x/c.json", "out/d.json"),
            {},
            ["s3://landing/in/a b.json", "s3://landing/in/x/c.json"],
        ),
        ("invoices_in_gcs", {}, object_of_gcs("invoices/1.csv"), ["gs://landing/invoices/1.csv"]),
        ("orders_in_gcs", {}, object_of_gcs("invoices/1.csv"), []),
        ("scans", blob("a.png"), {}, ["abfss://scans@shop.dfs.core.windows.net/a.png"]),
        ("scans", blob("a.txt"), {}, []),
    ],
)
async def test_the_examples_of_brokers_find_what_they_are_about(
    watcher: str, value: Any, attributes: dict[str, str | bytes], found: list[str | None]
) -> None:
    parsed = await parse_once(BROKER_EXAMPLES)
    (one,) = (one for file in parsed.files for one in file.watchers if one.asset_name == watcher)
    module, _, name = one.classpath.rpartition(".")
    trigger = getattr(import_module(module), name)(**one.kwargs)
    message = BrokerMessage(
        orjson.dumps(value),
        attributes=attributes,
        position={"topic": "orders", "partition": 0, "offset": 1, "message_id": "1"},
    )

    async def stream() -> AsyncIterator[BrokerMessage]:
        yield message

    events = [event async for event in trigger.filter_shared_stream(stream())]
    assert [event.payload.get("uri", event.partition_key) for event in events] == found


def test_python_examples_that_are_tried_elsewhere_are_python_at_least() -> None:
    for example in examples("python"):
        ast.parse(example.text, f"{example.page.name}:{example.line}")


@pytest.mark.parametrize(
    "example",
    [example for example in examples("toml") if example.page.name not in ELSEWHERE],
    ids=lambda example: example.name,
)
def test_toml_examples_are_configurations(example: Example, tmp_path: Path) -> None:
    file = tmp_path / "triggerer.toml"
    file.write_text(example.text)
    environ = {"TRIGGERER_DATABASE": "postgresql://triggerer@db/triggerer"}
    for name, connection in load_settings(file, environ).connections.items():
        SETTINGS.get(name, KafkaSettings).from_mapping(name, connection)


def default_of(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def as_written(value: Any, kind: Any = None) -> str:
    """Return a default as the page shows it, in the syntax of the configuration file."""
    if kind == "Age":
        return f'`"{written_age(value)}"`'
    match value:
        case None:
            return "not set"
        case timedelta():
            return f"`{value.total_seconds():g}`"
        case Path():
            return f'`"{value}"`'
        case tuple() | Mapping() | bool() | int() | float() | str():
            return f"`{orjson.dumps(value).decode()}`"
        case _ if is_dataclass(value):
            return "see below"
        case _:
            raise AssertionError(f"how is {value!r} written?")


@pytest.mark.parametrize("section", SECTIONS)
def test_the_configuration_page_has_every_key_with_its_default_and_meaning(section: str) -> None:
    shown = rows_under(REFERENCE / "configuration.md", f"## [{section}]")
    assert [(key, default) for key, default, _ in shown] == [
        (f"`{field.name}`", as_written(default_of(field), field.type))
        for field in fields(SECTIONS[section])
    ]
    assert all(meaning for _, _, meaning in shown)


def test_the_configuration_page_has_no_section_that_there_is_not() -> None:
    shown = re.findall(
        r"^## \[(\w+)\]$", (REFERENCE / "configuration.md").read_text(), re.MULTILINE
    )
    assert [section for section in shown if section != "pools"] == list(SECTIONS)


def test_the_kafka_page_has_every_key_of_its_connection_with_its_default() -> None:
    shown = rows_under(REFERENCE / "kafka.md", "## Connection keys")
    assert sorted((key, default) for key, default, _ in shown) == sorted(
        (
            f"`{field.name}`",
            "required"
            if field.default is MISSING
            else as_written(field.default).replace("not set", "none"),
        )
        for field in fields(KafkaSettings)
    )


@pytest.mark.parametrize("broker", sorted(SETTINGS))
def test_the_page_of_a_broker_has_every_key_of_its_connection_with_its_default(broker: str) -> None:
    shown = rows_under(REFERENCE / f"{broker}.md", "## Connection keys")
    assert sorted((key, default) for key, default, _ in shown) == sorted(
        (f"`{field.name}`", as_written(default_of(field), field.type))
        for field in fields(SETTINGS[broker])
    )


def test_the_watchers_page_has_every_operator_and_attribute() -> None:
    page = (REFERENCE / "watchers.md").read_text()
    conditions = " ".join(row[0] for row in rows_under(REFERENCE / "watchers.md", "## match"))
    assert set(re.findall(r'\{"(\w+)":', conditions)) == set(_OPERATORS)
    known = set().union(*(trigger.ATTRIBUTES for trigger in MESSAGE_TRIGGERS))
    assert set(re.findall(r"`@(\w+)", page)) == {*known, "value"}


@pytest.mark.parametrize(
    "trigger",
    [PubSubEventTrigger, ServiceBusEventTrigger, SqsEventTrigger],
    ids=lambda trigger: trigger.__name__,
)
def test_the_page_of_a_broker_has_every_argument_and_attribute_of_its_trigger(
    trigger: type[MessageTrigger],
) -> None:
    page = trigger.__module__.removeprefix("watchers.")
    (properties,) = re.findall(
        r"Properties of a message: (.*) \|", (REFERENCE / f"{page}.md").read_text()
    )
    assert set(re.findall(r"`@(\w+)", properties)) == set(trigger.ATTRIBUTES)
    named = {name for row in argument_rows(page) for name in re.findall(r"`(\w+)`", row[0])}
    assert named == set(inspect.signature(trigger).parameters)


def argument_rows(page: str) -> Iterator[list[str]]:
    """The rows of the table of a trigger's arguments."""
    lines = (REFERENCE / f"{page}.md").read_text().splitlines()
    start = lines.index("| Argument | Default | Meaning |") + 2
    for line in takewhile(lambda line: line.startswith("|"), lines[start:]):
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_dags_page_has_every_option_and_argument_of_a_task() -> None:
    def named(heading: str) -> set[str]:
        rows = rows_under(REFERENCE / "dags.md", heading)
        return {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}

    assert named("## Tasks") == OPTION_NAMES
    assert named("### Arguments") == set(CONTEXT_ARGUMENTS)


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target, anchor in _LINK.findall(_BLOCK.sub("", page.read_text())):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(f"{target}#{anchor}")
    assert dead == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_files_and_modules_that_pages_and_docstrings_name_are_there() -> None:
    # With a slash at both ends, `endswith` compares whole names of files and folders.
    tree = [
        f"/{path.relative_to(ROOT).as_posix()}/"
        for folder in ("deploy", "docs", "producers", "tests", "triggerer", "watchers")
        for path in (ROOT / folder, *(ROOT / folder).rglob("*"))
        if "node_modules" not in path.parts
    ]
    missing = set()
    for source in SOURCES:
        text = _BLOCK.sub("", source.read_text())
        for path in re.findall(r"`([\w./-]*\.py|[\w./-]*\w/)`", text):
            if path not in FOREIGN_FILES | FOREIGN_FOLDERS and not any(
                real.endswith(f"/{path.rstrip('/')}/") for real in tree
            ):
                missing.add(f"{source.relative_to(ROOT)}: {path}")
        missing |= {
            f"{source.relative_to(ROOT)}: {name}"
            for name in re.findall(r"`((?:producers|triggerer|watchers)\.\w+\.\w[\w.]*)`", text)
            if not is_name_of_ours(name)
        }
    assert missing == set()


def is_name_of_ours(name: str) -> bool:
    """Return whether a dotted name is one of our modules, or a module and a word in the module's text.

    No module is imported, because some modules need Airflow, which may be absent.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        for module in (path.with_suffix(".py"), path / "__init__.py"):
            if module.exists():
                rest = parts[length:]
                return not rest or re.search(rf"\b{rest[0]}\b", module.read_text()) is not None
    return False


def test_the_tests_that_the_table_of_brokers_names_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (REFERENCE / "brokers.md").read_text())
    assert len(named) >= 28
    for path, name in named:
        assert f"async def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_the_tests_that_the_page_of_reliability_names_are_there() -> None:
    page = (DOCS / "notes" / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) >= 50
    for path, name in named:
        text = (ROOT / path).read_text()
        assert not name or f"def {name}(" in text, f"{path}::{name}"
