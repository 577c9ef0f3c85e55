"""Shell completion: bash with a real bash, other shells with the commands that their scripts run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.cli.test_unknown_names import seed
from tests.acceptance.commands import ENVIRONMENT, run_command
from triggerer.cli.terminal.session import with_database

BASH = shutil.which("bash")
_ASK = """
source <(triggerer completion bash)
COMP_LINE=$1 COMP_POINT=${#1}
_triggerer_completion triggerer
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "triggerer.toml").write_text('[core]\nhome = "."\n')
    done = run_command("db", "migrate", cwd=folder)
    assert done.returncode == 0, done.stderr
    with_database(folder / "triggerer.toml", seed)
    return folder


def completed(line: str, folder: Path, **environment: str) -> list[str]:
    """Return the words that bash offers for a line."""
    assert BASH is not None
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    done = subprocess.run(
        [BASH, "--norc", "-c", _ASK, "bash", line],
        cwd=folder,
        env=ENVIRONMENT | {"PATH": path} | environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("triggerer ru", ["runs"]),
        ("triggerer runs can", ["cancel"]),
        ("triggerer runs list --as", ["--asset"]),
        ("triggerer dags show or", ["orders_daily"]),
        ("triggerer dags show ", ["orders_daily"]),
        ("triggerer dags show x", []),
        ("triggerer runs show orders_daily fi", ["first_load"]),
        ("triggerer runs show other fi", []),
        ("triggerer runs list --dag or", ["orders_daily"]),
        ("triggerer assets emit or", ["orders"]),
        # Bash divides words at colons, and replaces what follows the last one.
        ("triggerer assets emit x-test:", ["//orders"]),
        ("triggerer watchers show or", ["orders/inbox"]),
        ("triggerer watchers parked list --watcher or", ["orders/inbox"]),
        ("triggerer dags show --config nope.toml or", []),
    ],
)
def test_bash_completes_commands_ids_and_names(home: Path, line: str, offered: list[str]) -> None:
    assert completed(line, home) == offered


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    "url", ["sqlite:///nowhere.db", "postgresql://x@127.0.0.1:1/x", "nonsense", "sqlite:///text.db"]
)
def test_without_a_database_nothing_is_completed_and_nothing_is_said(
    tmp_path: Path, url: str
) -> None:
    (tmp_path / "text.db").write_text("no database" * 100)
    assert completed("triggerer dags show or", tmp_path, TRIGGERER__DATABASE__URL=url) == []
    assert not (tmp_path / "nowhere.db").exists()


def test_a_database_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    from triggerer.cli.terminal.session import read

    async def never(_: object) -> list[str]:
        import anyio

        await anyio.sleep_forever()
        return []

    config = tmp_path / "triggerer.toml"
    config.write_text('[core]\nhome = "."\n')
    assert run_command("db", "migrate", cwd=tmp_path).returncode == 0
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        read(config, never, patience_s=0.1)
    assert time.monotonic() - begun < 30


def test_zsh_and_fish_ask_for_the_same(home: Path) -> None:
    asked = {"_TYPER_COMPLETE_ARGS": "triggerer dags show or"}
    triggerer = Path(sys.executable).with_name("triggerer")
    for shell, shown in (("zsh", '"orders_daily"'), ("fish", "orders_daily\n")):
        script = run_command("completion", shell, cwd=home)
        assert f"_TRIGGERER_COMPLETE=complete_{shell}" in script.stdout
        done = subprocess.run(
            [triggerer],
            cwd=home,
            env=ENVIRONMENT
            | asked
            | {
                "_TRIGGERER_COMPLETE": f"complete_{shell}",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
            text=True,
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert shown in done.stdout


def test_the_script_can_name_a_configuration_and_an_unknown_shell_is_refused(home: Path) -> None:
    config = str(home / "triggerer.toml")
    for shell in ("bash", "zsh", "fish"):
        script = run_command("completion", shell, "--config", config, cwd=home).stdout
        assert f"env TRIGGERER_CONFIG={config} " in script
    done = run_command("completion", "bsh", cwd=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "triggerer: SHELL is one of bash, zsh, fish, not 'bsh'; did you mean 'bash'?\n"
    )
