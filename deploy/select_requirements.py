"""Print the part of requirements.lock that an installation needs, with its hashes.

    python3 deploy/select_requirements.py kafka spark > selected.txt
    pip install --require-hashes -r selected.txt

A comment `# via x` in the lock says that the package `x` needs the package above, perhaps only for an extra of `x`. The
script does not know the extra, so the result may contain packages that you do not need.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Pin(NamedTuple):
    """One pinned version of a package. The lock may pin another version for other versions of Python."""

    name: str
    needed_by: frozenset[str]
    text: str


def main() -> None:
    """Print the requirements that the command's arguments select."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "extras",
        nargs="*",
        help="extras of pyproject.toml; none: only the packages of the service itself",
    )
    parser.add_argument(
        "--build", action="store_true", help="print the packages that build wheels instead"
    )
    arguments = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    try:
        wanted = (
            # The packages in `build-system` build this project. setuptools builds pyspark.
            {*map(name_of, project["build-system"]["requires"]), "setuptools"}
            if arguments.build
            else set(direct(project["project"], arguments.extras))
        )
        sys.stdout.write(select((ROOT / "requirements.lock").read_text(), wanted))
    except KeyError as error:
        sys.exit(f"select_requirements.py: there is no {error.args[0]}")


def direct(project: dict[str, Any], extras: Iterable[str]) -> Iterator[str]:
    """Yield the names of the packages that pyproject.toml requires for the service and these extras.

    Raises:
        KeyError: pyproject.toml has no such extra.
    """
    asked = [*project["dependencies"]]
    for extra in extras:
        if extra not in project["optional-dependencies"]:
            raise KeyError(f"extra {extra!r} in pyproject.toml")
        asked += project["optional-dependencies"][extra]
    for text in asked:
        if name_of(text) == project["name"]:
            # An extra can consist of other extras: triggerer[kafka,spark].
            yield from direct(project, re.findall(r"[\w-]+", text.partition("[")[2]))
        else:
            yield name_of(text)


def select(lock: str, wanted: set[str]) -> str:
    """Return the lock's text for these packages and all packages that they need.

    Raises:
        KeyError: The lock lacks one of `wanted`.
    """
    pins = list(read(lock))
    if missing := wanted - {pin.name for pin in pins}:
        raise KeyError(f"{', '.join(sorted(missing))} in requirements.lock; run `make lock`")
    selected: set[str] = set()
    while wanted:
        selected |= wanted
        wanted = {pin.name for pin in pins if pin.needed_by & wanted} - selected
    return "".join(pin.text for pin in pins if pin.name in selected)


def read(lock: str) -> Iterator[Pin]:
    """Yield the pinned packages of a lock file."""
    for match in re.finditer(r"^([\w.-]+)==.*\n(?:[ \t]+.*\n)*", lock, re.MULTILINE):
        comments = re.findall(r"^ +#(?: +via)? +(\S+)(?: \(.*\))?$", match[0], re.MULTILINE)
        yield Pin(name_of(match[1]), frozenset(map(name_of, comments)), match[0])


def name_of(requirement: str) -> str:
    """Return the name of the required package in the spelling of package indexes (PEP 503)."""
    name = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", name[0] if name else requirement).lower()


if __name__ == "__main__":
    main()
