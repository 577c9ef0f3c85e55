"""Merges the values of the file, the environment and a command's own options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from triggerer.config.checking import build_section, read_slots
from triggerer.config.home_directory import expand_user
from triggerer.config.references import resolve, variable_in
from triggerer.config.sections import SECTIONS, ApiSettings, CoreSettings, DatabaseSettings
from triggerer.config.settings import Connections, Settings
from triggerer.config.sources import (
    POOLS,
    RawValue,
    find_file,
    read_environment,
    read_file,
    refuse_other_than_utf_8,
)
from triggerer.observability.redaction import remember_secrets_in
from triggerer.observability.target_names import remember_targets


def load_settings(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    overrides: Mapping[tuple[str, str], RawValue] | None = None,
) -> Settings:
    """Read the file and the environment. The function caches nothing, and creates nothing on disk.

    Args:
        path: The TOML file. None: the file that `$TRIGGERER_CONFIG` names, or else `triggerer.toml` in the working
            directory, if it exists.
        environ: The environment variables. None: the variables of this process.
        overrides: The values of a command's own options, by (section, key). They have the highest precedence.
    Raises:
        ConfigurationError: The file cannot be read, or a section, key or value is wrong. The message says where.
    """
    environ = os.environ if environ is None else environ
    file = find_file(path, environ)
    sections, connections = read_file(file) if file else ({}, {})
    read_environment(environ, sections, connections)
    for (section, key), given in (overrides or {}).items():
        sections.setdefault(section, {})[key] = given
    sources: dict[tuple[str, ...], str] = {}
    pools = {name: read_slots(name, given) for name, given in sections.pop(POOLS, {}).items()}
    built: dict[str, Any] = {
        name: build_section(name, kind, sections.get(name, {}), sources)
        for name, kind in SECTIONS.items()
    }
    sources |= {(POOLS, name): given.source for name, given in pools.items()}
    for name, keys in connections.items():
        sources |= {("connections", name, key): given.source for key, given in keys.items()}
    base = file.parent if file else Path()
    referred = variable_in(built["database"].url) | variable_in(built["spark"].remote)
    service_variables = referred - {
        name
        for keys in connections.values()
        for given in keys.values()
        for name in variable_in(given.value)
    }
    built["core"], built["database"] = _resolve_paths(
        built["core"], built["database"], sources, environ, base
    )
    remote = resolve(built["spark"].remote, "spark.remote", environ, base)
    built["spark"] = replace(built["spark"], remote=remote)
    built["api"] = _resolve_certificate_paths(built["api"], sources, environ, base)
    remember_secrets_in("", {name: asdict(section) for name, section in built.items()})
    remember_targets(built["notify"].urls)
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
    """Read only `[connections]`. A child process of the service needs no other settings.

    Raises:
        ConfigurationError: The file cannot be read, a section is unknown, or a variable is wrong (`read_environment`).
    """
    environ = os.environ if environ is None else environ
    file = find_file(None, environ)
    sections, connections = read_file(file) if file else ({}, {})
    read_environment(environ, sections, connections)
    written = {
        name: {key: given.value for key, given in keys.items()}
        for name, keys in connections.items()
    }
    return Connections(written, file, environ)


def _resolve_paths(
    core: CoreSettings,
    database: DatabaseSettings,
    sources: Mapping[tuple[str, ...], str],
    environ: Mapping[str, str],
    base: Path,
) -> tuple[CoreSettings, DatabaseSettings]:
    """Make the folders' paths absolute, and resolve the database's URL; an empty URL becomes SQLite in `home`.

    A folder's path in the configuration file is relative to that file's folder. The default of `dags_folder` is
    relative to `home`. Any other path of a folder is relative to the working directory.
    """

    def absolute(key: str, value: Path, default_base: Path) -> Path:
        is_from_file = _is_from_file(sources["core", key], environ)
        return (base if is_from_file else default_base) / expand_user(value)

    home = absolute("home", core.home, Path()).resolve()
    defaulted = sources["core", "dags_folder"] == "default"
    # Links are not resolved: a deployment may switch a link to the next version while the service runs.
    dags_folder = Path(
        os.path.abspath(  # noqa: PTH100
            absolute("dags_folder", core.dags_folder, home if defaulted else Path())
        )
    )
    for key, path in (("home", home), ("dags_folder", dags_folder)):
        refuse_other_than_utf_8(str(path), f"{key} in [core], {str(path)!r},")
    url = resolve(database.url, "database.url", environ, base)
    url = url or _sqlite_url(home / "triggerer.db")
    return replace(core, home=home, dags_folder=dags_folder), replace(database, url=url)


def _resolve_certificate_paths(
    api: ApiSettings,
    sources: Mapping[tuple[str, ...], str],
    environ: Mapping[str, str],
    base: Path,
) -> ApiSettings:
    """Make the paths of the certificate and its key absolute.

    A path in the file is relative to the file's folder, and any other path to the working directory.
    """

    def absolute(key: str, value: Path | None) -> Path | None:
        if value is None:
            return None
        return (base if _is_from_file(sources["api", key], environ) else Path()) / expand_user(
            value
        )

    return replace(
        api,
        tls_certificate=absolute("tls_certificate", api.tls_certificate),
        tls_key=absolute("tls_key", api.tls_key),
    )


def _is_from_file(source: str, environ: Mapping[str, str]) -> bool:
    return source != "default" and source not in environ and not source.startswith("--")


def _sqlite_url(path: Path) -> str:
    # Escape the characters that have a meaning in a URL: a folder may be called `feature%2Fx`.
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"
