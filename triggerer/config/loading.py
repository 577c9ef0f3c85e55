"""Where values come from, and what is said of wrong ones."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from triggerer.config.sections import (
    SECTIONS,
    ApiSettings,
    CoreSettings,
    DagProcessorSettings,
    DatabaseSettings,
    ExecutorSettings,
    SchedulerSettings,
    SparkSettings,
    TriggererSettings,
)
from triggerer.errors import ConfigurationError, UnknownConnection
from triggerer.redaction import is_reference, redact, remember_secret, remember_secrets_in

ENVIRONMENT_PREFIX: Final = "TRIGGERER__"
CONFIG_VARIABLE: Final = "TRIGGERER_CONFIG"
"""Names the file for children of the service, which have no command line of their own."""
DEFAULT_FILE: Final = "triggerer.toml"


class RawValue(NamedTuple):
    """A value as written, and where: `default`, `FILE:LINE`, a variable's or an option's name."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What is in force. `connections` holds values as written; `get_connection` resolves secrets."""

    core: CoreSettings
    database: DatabaseSettings
    triggerer: TriggererSettings
    scheduler: SchedulerSettings
    dag_processor: DagProcessorSettings
    executor: ExecutorSettings
    spark: SparkSettings
    api: ApiSettings
    pools: Mapping[str, int]
    """The slots of each pool, by name. A pool that is not here has one."""
    connections: Mapping[str, Mapping[str, Any]] = field(repr=False)
    file: Path | None
    sources: Mapping[tuple[str, ...], str] = field(repr=False)
    """For each (section, key), and (connections, id, key), where its value came from."""
    environ: Mapping[str, str] = field(repr=False)
    service_variables: frozenset[str] = frozenset()
    """Environment variables that the settings refer to and only the service needs: that of the database's URL."""

    @property
    def names_dags_folder(self) -> bool:
        """Whether somebody named the DAGs folder, which has to exist then; the default one need not yet."""
        return self.sources["core", "dags_folder"] != "default"

    def get_dags_folder(self) -> Path:
        """Return the DAGs folder, once it proved to be one that can be read.

        Raises:
            ConfigurationError: There is none, or it cannot be read.
        """
        folder = self.core.dags_folder
        hint = "name it with --dags-folder, or as dags_folder in [core]"
        try:
            os.scandir(folder).close()
        except FileNotFoundError as error:
            raise ConfigurationError(f"there is no DAGs folder {folder}", hint=hint) from error
        except OSError as error:
            raise ConfigurationError(
                f"the DAGs folder {folder} cannot be read: {error.strerror}", hint=hint
            ) from error
        return folder

    def get_connection(self, connection_id: str) -> Mapping[str, Any]:
        """Return the connection's settings, secrets resolved now, so that a rotated one is seen.

        Raises:
            ConfigurationError: There is no such connection, or one of its secrets cannot be read.
        """
        return Connections(self.connections, self.file, self.environ).get(connection_id)


@dataclass(frozen=True, slots=True)
class Connections:
    """`[connections]`, as written. All that children of the service need of the settings."""

    written: Mapping[str, Mapping[str, Any]] = field(repr=False)
    file: Path | None
    environ: Mapping[str, str] = field(repr=False)

    def get(self, connection_id: str) -> Mapping[str, Any]:
        """Return a connection's settings; see `Settings.get_connection`."""
        try:
            connection = self.written[connection_id]
        except KeyError:
            raise UnknownConnection(
                f"there is no connection {connection_id!r}{_nearest(connection_id, self.written)}",
                hint=f"add [connections.{connection_id}] to {self.file or DEFAULT_FILE},"
                " and restart a service that runs: it reads its settings once",
            ) from None
        base = self.file.parent if self.file else Path()
        resolved = {
            key: _resolve(value, f"connections.{connection_id}.{key}", self.environ, base)
            for key, value in connection.items()
        }
        remember_secrets_in("", resolved)
        return resolved


def load_settings(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    overrides: Mapping[tuple[str, str], RawValue] | None = None,
) -> Settings:
    """Read the file and the environment; nothing is cached and nothing is created on disk.

    Args:
        path: The TOML file; None looks where the package's docstring says, and there need be none.
        overrides: What a command's own options say, by (section, key); these win.
    Raises:
        ConfigurationError: The file cannot be read, or a section, key or value is wrong; says where.
    """
    environ = os.environ if environ is None else environ
    file = _find_file(path, environ)
    sections, connections = _read_file(file) if file else ({}, {})
    _read_environment(environ, sections, connections)
    for (section, key), given in (overrides or {}).items():
        sections.setdefault(section, {})[key] = given
    sources: dict[tuple[str, ...], str] = {}
    pools = {name: _slots(name, given) for name, given in sections.pop(_POOLS, {}).items()}
    built: dict[str, Any] = {
        name: _build_section(name, kind, sections.get(name, {}), sources)
        for name, kind in SECTIONS.items()
    }
    sources |= {(_POOLS, name): given.source for name, given in pools.items()}
    for name, keys in connections.items():
        sources |= {("connections", name, key): given.source for key, given in keys.items()}
    base = file.parent if file else Path()
    referred = _variable_in(built["database"].url)
    service_variables = referred - {
        name
        for keys in connections.values()
        for given in keys.values()
        for name in _variable_in(given.value)
    }
    built["core"], built["database"] = _place(
        built["core"], built["database"], sources, environ, base
    )
    remember_secrets_in("", {name: asdict(section) for name, section in built.items()})
    for keys in connections.values():
        remember_secrets_in("", {key: given.value for key, given in keys.items()})
    return Settings(
        **built,
        pools={name: given.value for name, given in pools.items()},
        service_variables=service_variables,
        connections={
            name: {key: given.value for key, given in keys.items()}
            for name, keys in connections.items()
        },
        file=file,
        sources=sources,
        environ=environ,
    )


def load_connections(environ: Mapping[str, str] | None = None) -> Connections:
    """Read `[connections]` alone, as a child of the service does, which is not given the rest.

    Raises:
        ConfigurationError: The file cannot be read, or names an unknown section.
    """
    environ = os.environ if environ is None else environ
    file = _find_file(None, environ)
    sections, connections = _read_file(file) if file else ({}, {})
    _read_environment(environ, sections, connections)
    written = {
        name: {key: given.value for key, given in keys.items()}
        for name, keys in connections.items()
    }
    return Connections(written, file, environ)


def _variable_in(value: Any) -> frozenset[str]:
    """Return the environment variable that a setting refers to."""
    if isinstance(value, str) and value.startswith("env:"):
        return frozenset({value.removeprefix("env:")})
    return frozenset()


def _find_file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    named = path or environ.get(CONFIG_VARIABLE)
    if not named:
        return Path(DEFAULT_FILE).resolve() if Path(DEFAULT_FILE).is_file() else None
    file = Path(named).expanduser().resolve()
    if not file.is_file():
        raise ConfigurationError(f"there is no configuration file {str(named)!r}")
    return file


_POOLS: Final = "pools"
Sections = dict[str, dict[str, RawValue]]


def _read_file(file: Path) -> tuple[Sections, Sections]:
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


def _read_environment(
    environ: Mapping[str, str], sections: Sections, connections: Sections
) -> None:
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
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
    if unknown := sections.keys() - SECTIONS.keys() - {_POOLS}:
        name = min(unknown)
        source = next((given.source for given in sections[name].values()), "the configuration")
        raise ConfigurationError(
            f"{source}: unknown section [{name}]{_nearest(name, [*SECTIONS, 'connections', _POOLS])}"
        )


def _slots(name: str, given: RawValue) -> RawValue:
    value = given.value
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or value < 1:
        raise ConfigurationError(
            f"{given.source}: pools.{name} has to be a number of slots from 1, not {given.value!r}"
        )
    return RawValue(value, given.source)


def _build_section(
    name: str, kind: type[Any], given: Mapping[str, RawValue], sources: dict[tuple[str, ...], str]
) -> Any:
    known = [item.name for item in fields(kind)]
    for key, (_, source) in given.items():
        if key not in known:
            raise ConfigurationError(
                f"{source}: unknown key {key!r} in [{name}]{_nearest(key, known)}"
            )
    sources |= {(name, key): given[key].source if key in given else "default" for key in known}
    if not given:
        # To have pydantic check nothing costs as much as to have it check something.
        return kind()
    try:
        return TypeAdapter(kind).validate_python({key: item.value for key, item in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        shown = redact(key, first["input"])
        raise ConfigurationError(
            f"{given[key].source}: [{name}] {key}: {_expected(first)}, not {shown!r}"
        ) from error


def _expected(error: ErrorDetails) -> str:
    """What pydantic says, in words for those who write a TOML file, not Python."""
    match error["type"]:
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "string_pattern_mismatch":
            choices = error["ctx"]["pattern"].strip("^()$").split("|")
            return f"it is one of {', '.join(choices)}"
        case "time_delta_parsing" | "time_delta_type":
            return "it is a number of seconds"
        case "greater_than" | "greater_than_equal" as kind:
            bound = next(iter(error["ctx"].values()))
            # Durations have no bound but zero, which pydantic gives as Python's text.
            number = 0 if isinstance(bound, str) else bound
            return f"it is {'more than' if kind == 'greater_than' else 'at least'} {number}"
        case _:
            return error["msg"]


def _place(
    core: CoreSettings,
    database: DatabaseSettings,
    sources: Mapping[tuple[str, ...], str],
    environ: Mapping[str, str],
    base: Path,
) -> tuple[CoreSettings, DatabaseSettings]:
    """Make paths absolute: the file's are relative to it, others to the working directory."""

    def placed(key: str, value: Path, default_base: Path) -> Path:
        source = sources["core", key]
        from_file = source != "default" and source not in environ and not source.startswith("--")
        return (base if from_file else default_base) / value.expanduser()

    home = placed("home", core.home, Path()).resolve()
    defaulted = sources["core", "dags_folder"] == "default"
    # Links are left in place: a deployment switches one to the next version while the service runs.
    dags_folder = Path(
        os.path.abspath(  # noqa: PTH100
            placed("dags_folder", core.dags_folder, home if defaulted else Path())
        )
    )
    url = _resolve(database.url, "database.url", environ, base)
    url = url or f"sqlite:///{home / 'triggerer.db'}"
    return replace(core, home=home, dags_folder=dags_folder), replace(database, url=url)


def _resolve(value: Any, name: str, environ: Mapping[str, str], base: Path) -> Any:
    if isinstance(value, Mapping):
        # A table within a connection: headers, for instance.
        return {key: _resolve(one, f"{name}.{key}", environ, base) for key, one in value.items()}
    if not isinstance(value, str) or not is_reference(value):
        return value
    kind, _, where = value.partition(":")
    if kind == "env":
        if where not in environ:
            raise ConfigurationError(
                f"{name} refers to the environment variable {where}, which is not set"
            )
        found = environ[where]
        _remember(found)
        return found
    try:
        # Editors end files with a line break, which no password has.
        found = (base / Path(where).expanduser()).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{name} refers to the file {where}, which cannot be read: {error}"
        ) from error
    _remember(found)
    return found


def _remember(found: str) -> None:
    if "://" in found:
        # The rest of a URL may be shown.
        remember_secrets_in("", found)
    else:
        remember_secret(found)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return f"; did you mean {close[0]!r}?" if close else ""
