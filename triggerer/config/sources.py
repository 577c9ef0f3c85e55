"""The file and the environment, as they are written: what stands in which section, and where."""

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
"""Names the file for children of the service, which have no command line of their own."""
DEFAULT_FILE: Final = "triggerer.toml"
POOLS: Final = "pools"


class RawValue(NamedTuple):
    """A value as written, and where: `default`, `FILE:LINE`, a variable's or an option's name."""

    value: Any
    source: str


Sections = dict[str, dict[str, RawValue]]
"""By section, or by connection, the values of its keys."""


def find_file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file that is named, or the one in the working directory, if there is one.

    Raises:
        ConfigurationError: The one that is named is not there, or where it lies cannot be looked at.
    """
    named = path or environ.get(CONFIG_VARIABLE)
    try:
        if not named:
            return Path(DEFAULT_FILE).resolve() if Path(DEFAULT_FILE).is_file() else None
        file = expand_user(Path(named)).resolve()
        if not file.is_file():
            raise ConfigurationError(f"there is no configuration file {str(named)!r}")
    except OSError as error:
        # Without `--config`, of a user who was not meant to stand in this folder, as after `runuser`.
        raise ConfigurationError(
            f"the configuration file {str(named or DEFAULT_FILE)!r} cannot be looked for: {error.strerror}",
            hint="change to a folder that this user may read, or name a file there with --config",
        ) from error
    return file


def read_file(file: Path) -> tuple[Sections, Sections]:
    """Return the sections and the connections of a file.

    Raises:
        ConfigurationError: It cannot be read, or has a value where a table belongs.
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
        raise ConfigurationError(f"{file}: [connections] has to be a table")
    for where, tables in (("", document), ("connections.", connections)):
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise ConfigurationError(f"{file}: [{where}{name}] has to be a table")
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
    """Find the lines of headers and keys, which tomllib does not keep; an exotic spelling is missed."""
    lines: dict[str, int] = {}
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[([^\[\]]+)\]", line):
            header = re.sub(r"[\s\"']", "", match[1])
            lines.setdefault(header, number)
        elif match := re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line):
            lines.setdefault(f"{header}.{match[1]}" if header else match[1], number)
    return lines


def refuse_other_than_utf_8(text: str, what: str) -> None:
    """Refuse what was not UTF-8 where the system gave it to us: neither a database nor a child of ours takes it.

    Raises:
        ConfigurationError: As it says.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{what} is not UTF-8", hint="give it another value") from error


def read_environment(environ: Mapping[str, str], sections: Sections, connections: Sections) -> None:
    """Add what variables say; these win.

    Raises:
        ConfigurationError: A variable's name is wrong, or it is not UTF-8; or there is an unknown section, of the file
            or of a variable.
    """
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        refuse_other_than_utf_8(f"{variable}={environ[variable]}", f"the variable {variable!r}")
        section, _, rest = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        given = RawValue(environ[variable], variable)
        if section == "connections":
            name, _, key = rest.partition("__")
            # The file's "my-kafka" is MY_KAFKA here: variables know neither case nor hyphens.
            known = {written.lower().replace("-", "_"): written for written in connections}
            if not name or not key:
                raise ConfigurationError(f"{variable}: write TRIGGERER__CONNECTIONS__<ID>__<KEY>")
            connections.setdefault(known.get(name, name), {})[key] = given
        else:
            sections.setdefault(section, {})[rest] = given
    if unknown := sections.keys() - SECTIONS.keys() - {POOLS}:
        name = min(unknown)
        source = next((given.source for given in sections[name].values()), "the configuration")
        raise ConfigurationError(
            f"{source}: unknown section [{name}]{ending(name, [*SECTIONS, 'connections', POOLS], cutoff=0)}"
        )
