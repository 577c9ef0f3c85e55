"""Whether watchers' sources can be read, as `triggerer check` asks."""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from tests.unit.dag_processing.watched import parsed_watchers
from triggerer.dag_processing import CheckedSources, check_sources

_TRIGGERS = """
import asyncio
import time
import anyio
from triggerer.errors import BrokerRefused, BrokerUnavailable, ConfigurationError

class Well(Base):
    async def check_source(self):
        with open(self.more, "a") as file:
            file.write(self.key)

class Silent(Base):
    pass

class Wrong(Base):
    async def check_source(self):
        raise ConfigurationError("unknown key 'x' in [connections.q]", hint="did you mean 'y'?")

class Refusing(Base):
    async def check_source(self):
        raise BrokerRefused("there is no queue 'q'")

class Away(Base):
    async def check_source(self):
        raise BrokerUnavailable("nobody at q:1")

class Hanging(Base):
    async def check_source(self):
        await anyio.sleep_forever()

class Broken(Base):
    async def check_source(self):
        raise KeyError("q")

class Late(Base):
    async def check_source(self):
        await anyio.sleep(0.2)
        raise BrokerRefused("there is no queue 'late'")

class Importing(Base):
    async def check_source(self):
        # As the import of a client does: the loop stands still.
        time.sleep(0.3)
        await anyio.sleep(0.01)

class CancelledByItsClient(Base):
    async def check_source(self):
        raise asyncio.CancelledError

class Cancelling(Base):
    async def check_source(self):
        asyncio.current_task().cancel()

class Exiting(Base):
    async def check_source(self):
        raise SystemExit(3)

class Protesting(Base):
    async def check_source(self):
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("as a client may, on its way out")
"""


async def checked(
    folder: Path, watchers: dict[str, str], deadline: timedelta = timedelta(seconds=20)
) -> CheckedSources:
    found = await parsed_watchers(folder, _TRIGGERS, watchers)
    return await check_sources(found, dags_folder=folder, deadline=deadline)


def _file(folder: Path) -> Path:
    return folder / f"triggers_of_{folder.name}.py"


async def test_wrong_sources_differ_from_silent_ones_and_neither_hide_the_rest(
    tmp_path: Path,
) -> None:
    found = await checked(
        tmp_path,
        {
            "away": "Away()",
            "wrong": "Wrong()",
            "silent": "Silent()",
            "refusing": "Refusing()",
            "broken": "Broken()",
        },
    )
    assert [str(error) for error in found.errors] == [
        "dag.py:4: watcher 'w' of asset 'wrong': unknown key 'x' in [connections.q] (did you mean 'y'?)",
        "dag.py:6: watcher 'w' of asset 'refusing': there is no queue 'q'",
        (
            f"{_file(tmp_path)}: check_source() of triggers_of_{tmp_path.name}.Broken raised KeyError: 'q';"
            " used by watcher 'w' of asset 'broken' (dag.py:7): the plugin's author has to fix that; no DAG file is to"
            " blame"
        ),
    ]
    assert [str(one) for one in found.unavailable] == [
        "dag.py:3: watcher 'w' of asset 'away': nobody at q:1"
    ]


async def test_a_stream_is_asked_for_once(tmp_path: Path) -> None:
    note = tmp_path / "asked"
    found = await checked(
        tmp_path,
        {
            "one": f"Well('a', {str(note)!r})",
            "sibling": f"Well('a', {str(note)!r})",
            "another": f"Well('b', {str(note)!r})",
        },
    )
    assert found == CheckedSources()
    assert sorted(note.read_text()) == ["a", "b"]


async def test_those_that_hang_share_one_deadline(tmp_path: Path) -> None:
    # One after the other these would take 20 times the deadline.
    hanging = {f"a{number}": f"Hanging('{number}')" for number in range(20)}
    with anyio.fail_after(20):
        found = await checked(tmp_path, hanging, deadline=timedelta(seconds=1))
    assert found.errors == ()
    assert len(found.unavailable) == 20
    assert found.unavailable[0].reason == (
        "watcher 'w' of asset 'a0': its source did not answer within 1 s"
    )


async def test_the_import_of_a_client_does_not_count_as_time_to_answer(tmp_path: Path) -> None:
    importing = {f"a{number}": f"Importing('{number}')" for number in range(3)}
    found = await checked(tmp_path, importing, deadline=timedelta(seconds=0.25))
    assert found == CheckedSources()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("CancelledByItsClient", "was cancelled, and nobody here asked for it"),
        ("Cancelling", None),
        ("Exiting", "called sys.exit(3)"),
    ],
)
async def test_a_check_that_ends_its_task_ends_neither_others_nor_the_command(
    tmp_path: Path, kind: str, reason: str | None
) -> None:
    found = await checked(tmp_path, {"one": f"{kind}()", "late": "Late()"})
    *first, late = (str(error) for error in found.errors)
    assert late == "dag.py:4: watcher 'w' of asset 'late': there is no queue 'late'"
    told = f"{_file(tmp_path)}: check_source() of triggers_of_{tmp_path.name}.{kind} {reason}"
    assert [error.startswith(told) for error in first] == ([] if reason is None else [True])


async def test_an_error_after_the_deadline_is_no_answer(tmp_path: Path) -> None:
    found = await checked(tmp_path, {"one": "Protesting()"}, deadline=timedelta(seconds=0.1))
    assert found.errors == ()
    (unavailable,) = found.unavailable
    assert unavailable.reason.endswith("its source did not answer within 0.1 s")
