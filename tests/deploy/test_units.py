"""systemd checks our units in a separate root folder, without the units of this machine."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.services.availability import skip_or_fail
from triggerer.cli.main import SERVICES
from triggerer.config import load_settings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
DOCS = ROOT / "docs" / "howto" / "systemd.md"

any_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the units installed as the documentation says, and the command that they start."""
    for tool in ("systemd-analyze", "systemd-sysusers"):
        if shutil.which(tool) is None:
            skip_or_fail(f"{tool} is not installed")
    shutil.copytree(
        FOLDER,
        tmp_path / "etc/systemd/system",
        ignore=shutil.ignore_patterns("*.example", "sysusers.conf"),
    )
    for unit in UNITS:
        command = tmp_path / settings_of(unit)["ExecStart"].split()[0].lstrip("/")
        command.parent.mkdir(parents=True, exist_ok=True)
        command.touch(mode=0o755)
    return tmp_path


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def verify(root: Path, unit: str) -> str:
    """Return what systemd reports about a unit and its drop-ins; empty if nothing is wrong."""
    done = run("systemd-analyze", "verify", "--recursive-errors=no", f"--root={root}", unit)
    assert (done.returncode == 0) == (done.stdout == ""), done.stdout
    return done.stdout


def settings_of(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser["Service"]


def documented_exposures() -> dict[str, float]:
    rows = re.findall(
        r"^\| `(triggerer-[\w-]+)` \|.*\| (\d\.\d) \|$", DOCS.read_text(), re.MULTILINE
    )
    return {unit: float(exposure) for unit, exposure in rows}


def test_there_is_a_unit_for_each_service_and_each_starts_its_own() -> None:
    started = {unit.stem: settings_of(unit)["ExecStart"].split()[1] for unit in UNITS}
    assert started == {f"triggerer-{service}": service for service in SERVICES}


@any_unit
def test_systemd_finds_nothing_wrong(root: Path, unit: Path) -> None:
    assert verify(root, unit.name) == ""


def test_what_is_wrong_would_be_found(root: Path) -> None:
    """systemd reports an unknown setting in a drop-in, and a command that does not exist."""
    drop_in = root / "etc/systemd/system/triggerer-.service.d/10-hardening.conf"
    drop_in.write_text(drop_in.read_text() + "ProtectEverything=yes\n")
    assert "ProtectEverything" in verify(root, "triggerer-scheduler.service")
    shutil.rmtree(root / "opt")
    assert "is not executable" in verify(root, "triggerer-standalone.service")


@any_unit
def test_the_example_of_a_drop_in_fits(root: Path, unit: Path) -> None:
    folder = root / f"etc/systemd/system/{unit.name}.d"
    folder.mkdir()
    shutil.copy(FOLDER / "50-local.conf.example", folder / "50-local.conf")
    assert verify(root, unit.name) == ""


@any_unit
def test_no_unit_is_more_exposed_than_documented(root: Path, unit: Path) -> None:
    exposure = documented_exposures()[unit.stem]
    done = run(
        "systemd-analyze",
        "security",
        "--no-pager",
        "--offline=true",
        f"--threshold={exposure * 10:.0f}",
        f"--root={root}",
        unit.name,
    )
    assert done.returncode == 0, done.stdout
    assert f"Overall exposure level for {unit.name}" in done.stdout


@any_unit
def test_a_stop_leaves_time_for_both_of_its_stages(unit: Path) -> None:
    grace = load_settings(environ={}).core.shutdown_grace.total_seconds()
    settings = settings_of(unit)
    assert float(settings["TimeoutStopSec"]) >= 2 * grace + 30
    # If systemd sent the stop signal to the workers too, their runs would fail.
    assert settings["KillMode"] == "mixed"


@any_unit
def test_the_watchdog_waits_longer_than_a_stall_that_the_lease_outlives(unit: Path) -> None:
    settings = settings_of(unit)
    lease = load_settings(environ={}).triggerer.lease_duration.total_seconds()
    assert settings["Type"] == "notify"
    assert float(settings["WatchdogSec"]) > 2 * lease


def test_the_account_can_be_made(root: Path) -> None:
    folder = root / "etc/sysusers.d"
    folder.mkdir()
    shutil.copy(FOLDER / "sysusers.conf", folder / "triggerer.conf")
    done = run("systemd-sysusers", "--dry-run", f"--root={root}")
    assert done.returncode == 0, done.stdout
    assert {settings_of(unit)["User"] for unit in UNITS} == {"triggerer"}
    assert "user 'triggerer'" in done.stdout
