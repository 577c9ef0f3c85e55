"""Reads the file and the environment into raw values, each with its origin."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from triggerer.config.home_directory import expand_user
from triggerer.config.sections import SECTIONS
from triggerer.errors import ConfigurationError
from triggerer.nearest import ending

ENVIRONMENT_PREFIX: Final = "TRIGGERER__"
CONFIG_VARIABLE: Final = "TRIGGERER_CONFIG"
"""The environment variable with the path of the configuration file. Child processes of the service get it."""
DEFAULT_FILE: Final = "triggerer.toml"
POOLS: Final = "pools"


class RawValue(NamedTuple):
    """A value as written, and its origin: `FILE:LINE`, or the name of a variable or an option."""

    value: Any
    source: str


Sections = dict[str, dict[str, RawValue]]
"""Values by section (or id of a connection), then by key."""


def find_file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the given file, or else the file that `$TRIGGERER_CONFIG` names, or else the default file.

    None: no file is given or named, and the working directory has no default file.

    Raises:
        ConfigurationError: The given or named file does not exist, or a folder of its path cannot be read.
    """
    named = path or environ.get(CONFIG_VARIABLE)
    try:
        if not named:
            return Path(DEFAULT_FILE).resolve() if Path(DEFAULT_FILE).is_file() else None
        file = expand_user(Path(named)).resolve()
        if not file.is_file():
            raise ConfigurationError(f"there is no configuration file {str(named)!r}")
    except OSError as error:
        # Without `--config`, the working directory may be unreadable for this user, for example after `runuser`.
        raise ConfigurationError(
            f"the configuration file {str(named or DEFAULT_FILE)!r} cannot be read: {error.strerror}",
            hint="change to a folder that this user can read, or name a file with --config",
        ) from error
    return file


def read_file(file: Path) -> tuple[Sections, Sections]:
    """Return the sections and the connections of a file.

    Raises:
        ConfigurationError: The file cannot be read, or has a value where a table must be.
    """
    try:
        text = file.read_text("utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    lines = _lines_of_keys(text)

    def given(name: str, key: str, value: Any) -> RawValue:
        line = lines.get(f"{name}.{key}") or lines.get(name)
        return RawValue(value, f"{file}:{line}" if line else str(file))

    connections = document.pop("connections", {})
    if not isinstance(connections, Mapping):
        raise ConfigurationError(f"{file}: [connections] must be a table")
    for where, tables in (("", document), ("connections.", connections)):
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise ConfigurationError(f"{file}: [{where}{name}] must be a table")
    return (
        {
            name: {key: given(name, key, value) for key, value in table.items()}
            for name, table in document.items()
        },
        {
            name: {key: given(f"connections.{name}", key, value) for key, value in table.items()}
            for name, table in connections.items()
        },
    )


def _lines_of_keys(text: str) -> dict[str, int]:
    """Return the line numbers of headers and keys, which tomllib does not report.

    Keys in an unusual notation, such as inline tables, have no line number in the result.
    """
    lines: dict[str, int] = {}
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[([^\[\]]+)\]", line):
            header = re.sub(r"[\s\"']", "", match[1])
            lines.setdefault(header, number)
        elif match := re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line):
            lines.setdefault(f"{header}.{match[1]}" if header else match[1], number)
    return lines


def _set(section: dict[str, RawValue], path: str, given: RawValue) -> None:
    """Set a key of a section or, with `key__inner`, a key of a table in the section.

    Raises:
        ConfigurationError: `path` leads through a key whose value is not a table.
    """
    key, _, inner = path.partition("__")
    if not inner:
        section[key] = given
        return
    origin = section[key].source if key in section else given.source
    place: dict[str, Any] = {key: section[key].value} if key in section else {}
    root = place
    *parents, last = path.split("__")
    for parent in parents:
        former = place.get(parent, {})
        if not isinstance(former, Mapping):
            raise ConfigurationError(
                f"{given.source}: {parent!r} has a value ({origin}), so it has no keys",
                hint="remove one of the two settings",
            )
        place[parent] = dict(former)
        place = place[parent]
    place[last] = given.value
    section[key] = RawValue(root[key], given.source)


def refuse_other_than_utf_8(text: str, what: str) -> None:
    """Refuse text from the system that is not UTF-8, because a database cannot store it.

    Raises:
        ConfigurationError: The text is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{what} is not UTF-8", hint="give it another value") from error


def read_environment(environ: Mapping[str, str], sections: Sections, connections: Sections) -> None:
    """Add the values of environment variables, which override the file.

    Raises:
        ConfigurationError: A variable's name is wrong, its text is not UTF-8, or it contradicts another value. Or the
            file or a variable names an unknown section.
    """
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        refuse_other_than_utf_8(f"{variable}={environ[variable]}", f"the variable {variable!r}")
        section, _, rest = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        given = RawValue(environ[variable], variable)
        if section == "connections":
            name, _, key = rest.partition("__")
            # The file's "my-kafka" is MY_KAFKA in a variable, because names of variables have no hyphens.
            known = {written.lower().replace("-", "_"): written for written in connections}
            if not name or not key:
                raise ConfigurationError(f"{variable}: write TRIGGERER__CONNECTIONS__<ID>__<KEY>")
            connections.setdefault(known.get(name, name), {})[key] = given
        elif not section or not rest:
            raise ConfigurationError(f"{variable}: write TRIGGERER__<SECTION>__<KEY>")
        else:
            _set(sections.setdefault(section, {}), rest, given)
    if unknown := sections.keys() - SECTIONS.keys() - {POOLS}:
        name = min(unknown)
        source = next((given.source for given in sections[name].values()), "the configuration")
        raise ConfigurationError(
            f"{source}: unknown section [{name}]{ending(name, [*SECTIONS, 'connections', POOLS], cutoff=0)}"
        )
