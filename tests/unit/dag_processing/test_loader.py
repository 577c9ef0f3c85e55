from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from triggerer.domain.assets import Asset
from triggerer.errors import DagFileError
from triggerer.plugins.dag_file import load_dag_file

HEADER = """\
from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.dags import DAG
from triggerer.domain.tasks import task
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose modules and path are gone after the test."""
    root = tmp_path / "dags"
    root.mkdir()
    modules, path = dict(sys.modules), list(sys.path)
    yield root
    for name in set(sys.modules) - set(modules):
        if str(root) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    sys.path[:] = path


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(HEADER + text)
    return file


def test_dags_are_found_in_variables_containers_and_blocks(folder: Path) -> None:
    file = write(
        folder,
        "a.py",
        """
plain = DAG("plain")
many = [DAG("in_a_list")]
with DAG("in_a_block"):
    pass
""",
    )
    assert set(load_dag_file(file, folder).dags) == {"plain", "in_a_list", "in_a_block"}


def test_a_dag_belongs_to_the_file_at_whose_level_it_was_made(folder: Path) -> None:
    write(folder, "factory.py", "def make(name):\n    return DAG(name)\nown = make('own')\n")
    file = write(folder, "user.py", "from factory import make, own\nmade = make('made')\n")
    assert set(load_dag_file(file, folder).dags) == {"made"}
    assert set(load_dag_file(folder / "factory.py", folder).dags) == {"own"}


def test_an_asset_that_an_expression_names_twice_keeps_its_watchers(folder: Path) -> None:
    file = write(
        folder,
        "a.py",
        """
from triggerer import AssetWatcher
from watchers.kafka import KafkaEventTrigger

watched = AssetWatcher("w", KafkaEventTrigger("orders", group_id="g"))
dag = DAG("d", schedule=Asset("x") & Asset("x", watchers=[watched]))
""",
    )
    assets = load_dag_file(file, folder).assets
    assert [watcher.name for asset in assets for watcher in asset.watchers] == ["w"]


def test_assets_are_found_at_module_level_and_in_dags(folder: Path) -> None:
    file = write(
        folder,
        "a.py",
        """
alone = Asset("alone")
either = Asset("x") | AssetAlias("alias")
with DAG("d", schedule=[Asset("scheduled")]):
    @task(outlets=Asset("out"), inlets=[Asset("in")])
    def f(): ...
    f()
""",
    )
    loaded = load_dag_file(file, folder)
    assert {asset.name for asset in loaded.assets} == {"alone", "x", "scheduled", "out", "in"}
    assert [alias.name for alias in loaded.aliases] == ["alias"]


def test_each_load_runs_the_file_and_what_it_imports_as_they_are_now(folder: Path) -> None:
    write(folder, "helper.py", "name = 'one'\n")
    file = write(folder, "a.py", "import helper\ndag = DAG(helper.name)\n")
    assert set(load_dag_file(file, folder).dags) == {"one"}
    # Same size, and most likely within the same second: cached bytecode would not notice.
    write(folder, "helper.py", "name = 'two'\n")
    assert set(load_dag_file(file, folder).dags) == {"two"}
    assert not list(folder.rglob("*.pyc"))


def test_a_file_that_has_rested_is_compiled_once_and_run_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder, "flights.py", "dag = DAG('a')")
    monkeypatch.setattr("triggerer.plugins.folder._STABLE_NS", -(10**12))
    first = load_dag_file(path, folder)
    monkeypatch.setattr("triggerer.plugins.folder._FreshLoader.source_to_code", None)
    second = load_dag_file(path, folder)
    assert first.dags["a"] is not second.dags["a"]
    monkeypatch.undo()
    write(folder, "flights.py", "dag = DAG('b')")
    assert set(load_dag_file(path, folder).dags) == {"b"}


def test_the_modules_of_the_folder_are_listed_for_pickling(folder: Path) -> None:
    write(folder, "sub/helper.py", "")
    file = write(folder, "a.py", "import sub.helper\nimport json\n")
    names = {module.__name__ for module in load_dag_file(file, folder).modules}
    assert {"a", "sub.helper"} <= names
    assert "json" not in names


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("a.py", "a"),
        ("sub/b.py", "sub.b"),
        ("pkg/__init__.py", "pkg"),
        ("my-dag.py", "triggerer_dag_file_my_dag_"),
        ("random.py", "triggerer_dag_file_random_"),
        ("anyio.py", "triggerer_dag_file_anyio_"),
    ],
)
def test_a_module_is_named_after_its_file_unless_the_name_is_taken(
    folder: Path, name: str, module: str
) -> None:
    loaded = load_dag_file(write(folder, name, "class Here: ..."), folder)
    assert loaded.module.__name__.startswith(module)
    assert loaded.module.Here.__module__ == loaded.module.__name__
    import random

    assert hasattr(random, "randint")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x = (\n", 4, r"syntax error: '\(' was never closed"),
        ("\n\nimport no_such_thing\n", 6, "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def f():\n    raise ValueError('no')\nf()\n", 5, "ValueError: no"),
        ("import json\njson.loads('{')\n", 5, r"JSONDecodeError: .*raised at .*decoder\.py"),
        ("import sys\nsys.exit(3)\n", 5, r"it calls sys\.exit\(3\)"),
        ("Asset('s3:///x')\n", 4, "names no bucket"),
        ("DAG('d')\nDAG('a b')\n", 5, "a DAG's id"),
        ("a = DAG('d')\nb = DAG('d')\n", 5, "DAG 'd' is defined twice, first in line 4"),
        (
            "a = Asset('s3://b/x', name='one')\nb = Asset('s3://b/x', name='two')\n",
            5,
            r"'two'.* at bad\.py:5 contradicts asset 'one'.* at bad\.py:4",
        ),
        ("a = Asset('n', uri='x')\nb = Asset('n', uri='y')\n", 5, r"bad\.py:5 contradicts"),
    ],
)
def test_an_error_names_file_line_and_reason(
    folder: Path, text: str, line: int, reason: str
) -> None:
    file = write(folder, "bad.py", text)
    with pytest.raises(DagFileError, match=reason) as broken:
        load_dag_file(file, folder)
    assert (broken.value.file, broken.value.line) == ("bad.py", line)


def test_an_error_in_an_imported_file_is_shown_at_the_import(folder: Path) -> None:
    write(folder, "helper.py", "\n\nx = = 1\n")
    file = write(folder, "a.py", "\nimport helper\n")
    with pytest.raises(DagFileError, match=r"syntax error in .*helper\.py:6") as broken:
        load_dag_file(file, folder)
    assert (broken.value.file, broken.value.line) == ("a.py", 5)


def test_a_file_that_failed_can_be_loaded_once_it_is_repaired(folder: Path) -> None:
    with pytest.raises(DagFileError):
        load_dag_file(write(folder, "a.py", "raise ValueError\n"), folder)
    assert set(load_dag_file(write(folder, "a.py", "d = DAG('d')\n"), folder).dags) == {"d"}


def test_a_file_that_is_not_there_or_not_in_the_folder_is_refused(folder: Path) -> None:
    with pytest.raises(DagFileError, match="no such file"):
        load_dag_file(folder / "none.py", folder)
    with pytest.raises(DagFileError, match="not below"):
        load_dag_file(folder.parent / "other.py", folder)


def test_a_warning_is_kept_with_its_place(folder: Path) -> None:
    file = write(folder, "a.py", "a = Asset('s3://user:secret@bucket/x')\n")
    (warning,) = load_dag_file(file, folder).warnings
    assert (warning.file, warning.line) == ("a.py", 4)
    assert "credentials" in warning.reason
    assert "secret" not in warning.reason


def test_an_asset_imported_from_another_file_keeps_its_place(folder: Path) -> None:
    write(folder, "shared.py", "\nflights = Asset('flights')\n")
    file = write(folder, "a.py", "from shared import flights\nd = DAG('d', schedule=flights)\n")
    (asset,) = load_dag_file(file, folder).assets
    assert asset == Asset("flights")
    assert asset.defined_at is not None
    assert asset.defined_at.file == str(folder / "shared.py")
