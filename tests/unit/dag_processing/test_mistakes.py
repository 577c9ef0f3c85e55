"""Pools that nobody configured, and `@task` functions that no DAG calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from triggerer.dag_processing import ParsedFolder, parse_once

IMPORTS = "from triggerer import DAG, task\n"


async def parsed_from(folder: Path, source: str, **options: object) -> ParsedFolder:
    (folder / "a.py").write_text(IMPORTS + source)
    return await parse_once(folder, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pool", "pools", "hint"),
    [
        ("wharehouse", {"warehouse"}, "did you mean 'warehouse'?"),
        (
            "db",
            {"warehouse"},
            "add `db = SLOTS` to [pools] of the configuration, and restart a running service",
        ),
        ("default_pool", set(), "leave it out: a task without a pool waits for no slot"),
    ],
)
@pytest.mark.parametrize("where", ["task", "default_args"])
async def test_a_pool_that_nobody_configured_is_an_error_that_says_what_to_do(
    folder: Path, pool: str, pools: set[str], hint: str, where: str
) -> None:
    dag, task = (
        (f", default_args={{'pool': {pool!r}}}", "")
        if where == "default_args"
        else ("", f"(pool={pool!r})")
    )
    source = f"with DAG('d'{dag}):\n  @task{task}\n  def load(): ...\n  load()\n"
    found = await parsed_from(folder, source, pools=pools)
    (error,) = found.errors
    assert str(error) == f"a.py:5: task 'load' of DAG 'd': there is no pool {pool!r} ({hint})"
    assert found.files[0].is_broken


async def test_a_pool_that_is_configured_or_cannot_be_known_is_taken(folder: Path) -> None:
    source = "with DAG('d'):\n  @task(pool='db')\n  def load(): ...\n  load()\n"
    assert (await parsed_from(folder, source, pools={"db"})).errors == ()
    assert (await parsed_from(folder, source)).errors == ()


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (
            "with DAG('d'):\n  @task\n  def load(): ...\n",
            "a.py:3: DAG 'd': ",
        ),
        (
            "with DAG('d'):\n  @task(retries=2)\n  def load(): ...\n  @task\n  def other(): ...\n  other()\n",
            "a.py:3: DAG 'd': ",
        ),
        (
            "@task\ndef load(): ...\nwith DAG('d'):\n  pass\n",
            "a.py:2: ",
        ),
        (
            "def make():\n  with DAG('d'):\n    load = task(print)\nmake()\n",
            "a.py:4: DAG 'd': ",
        ),
    ],
)
async def test_a_task_function_that_is_never_called_is_warned_of(
    folder: Path, source: str, place: str
) -> None:
    found = await parsed_from(folder, source)
    assert found.errors == ()
    name = "print" if "print" in source else "load"
    dag = "the DAG" if "'d'" in place else "a DAG"
    (warning,) = found.warnings
    assert str(warning) == (
        f"{place}the @task function {name!r} is never called, so it never runs (call it in {dag}: {name}(...))"
    )


@pytest.mark.parametrize(
    "source",
    [
        "with DAG('d'):\n  @task\n  def load(): ...\n  load()\n",
        "with DAG('d'):\n  @task\n  def load(): ...\n  load.override(retries=1).override(task_id='x')()\n",
        "@task\ndef load(): ...\nwith DAG('d'):\n  load()\n",
        # A library: its functions are for other files.
        "@task\ndef load(): ...\n",
    ],
)
async def test_a_task_function_that_is_called_or_belongs_to_a_library_is_not(
    folder: Path, source: str
) -> None:
    found = await parsed_from(folder, source)
    assert (found.errors, found.warnings) == ((), ())


async def test_a_file_is_not_warned_of_the_functions_of_a_library_that_it_uses_in_part(
    folder: Path,
) -> None:
    (folder / "library.py").write_text(
        IMPORTS + "@task\ndef used(): ...\n@task\ndef other(): ...\n"
    )
    source = "from library import used\nwith DAG('d'):\n  used()\n"
    found = await parsed_from(folder, source)
    assert (found.errors, found.warnings) == ((), ())
