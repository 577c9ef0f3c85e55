"""Creates a demo's folder, with DAGs, configuration, database, logs and results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path

from triggerer.config import Settings, load_settings
from triggerer.config.home_directory import expand_user
from triggerer.errors import ConfigurationError

_CONFIG = """\
# Written by `triggerer demo`. Commands can read the demo's database, for example:
#   triggerer runs list --config {file}
[core]
home = "."
dags_folder = "dags"
shutdown_grace = 10

[api]
# A free port, because other demos and services may run on this machine.
port = 0

[executor]
# Both DAGs use one Spark session in turns. Two sessions would share the cores and start twice.
workers = 1

[spark]
mode = "local"
master = "local[{cores}]"
# The archive speeds up later sessions. The demo has only one session.
archive_classes = false

[spark.conf]
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "{cores}"
"spark.default.parallelism" = "{cores}"
"spark.sql.session.timeZone" = "UTC"

[connections.kafka]
# The broker runs in the demo's process, and ends with the process.
bootstrap_servers = "{bootstrap_servers}"
# While there are no messages, the demo's broker delays its answer for this time. A real Kafka answers at once when a
# message comes.
fetch_max_wait_ms = 20
"""


@dataclass(frozen=True, slots=True)
class DemoHome:
    """A demo's new folder, with only the configuration and the DAGs in it."""

    path: Path
    settings: Settings

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def log(self) -> Path:
        return self.path / "service.log"


def choose_home(home: Path | None) -> Path:
    """Return the folder of this demo: `home`, or a new one under `.triggerer-demo`.

    Raises:
        ConfigurationError: `home` exists, and is not an empty folder.
    """
    if home is None:
        began = datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S")
        return Path(".triggerer-demo", f"{began}-{os.getpid()}").absolute()
    home = expand_user(home).absolute()
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise ConfigurationError(
            f"{home} is not an empty folder", hint="each demo needs a new folder"
        )
    return home


def make_home(path: Path, *, bootstrap_servers: str) -> DemoHome:
    """Write the configuration and the DAGs of `triggerer demo`, which uses the embedded Kafka broker.

    Raises:
        ConfigurationError: The folder cannot be written.
    """
    text = _CONFIG.format(
        file=path / "triggerer.toml",
        cores=os.cpu_count() or 2,
        bootstrap_servers=bootstrap_servers,
    )
    sources = (resources.files("triggerer.demo") / "dags").iterdir()
    dags = {
        source.name: source.read_text("utf-8") for source in sources if source.name.endswith(".py")
    }
    return write_home(path, text, dags)


def write_home(path: Path, configuration: str, dags: Mapping[str, str]) -> DemoHome:
    """Write the configuration, and the DAG files (name -> text), into a new folder.

    Raises:
        ConfigurationError: The folder cannot be written.
    """
    file = path / "triggerer.toml"
    try:
        folder = path / "dags"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir()
        # If the folder is inside a git repository, git ignores it.
        (path / ".gitignore").write_text("*\n", "utf-8")
        for name, text in dags.items():
            (folder / name).write_text(text, "utf-8")
        file.write_text(configuration, "utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the demo cannot write to {path}: {error.strerror}",
            hint="name another folder with --home",
        ) from error
    # Ignore the environment's settings: they belong to a real service.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("TRIGGERER_")
    }
    return DemoHome(path, load_settings(file, environ))
