"""Where a demo lives: a folder of its own with DAGs, configuration, database, logs and results."""

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
# Written by `triggerer demo`. The commands work on what it left behind, for example:
#   triggerer runs list --config {file}
[core]
home = "."
dags_folder = "dags"
shutdown_grace = 10

[executor]
# Both DAGs take turns on one warm Spark session: two would share the cores and start twice.
workers = 1

[spark]
mode = "local"
master = "local[{cores}]"
# For sessions that start later; here is one, and the demo ends with it.
archive_classes = false

[spark.conf]
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "{cores}"
"spark.default.parallelism" = "{cores}"
"spark.sql.session.timeZone" = "UTC"

[connections.kafka]
# The broker lived in the demo's process and is gone with it.
bootstrap_servers = "{bootstrap_servers}"
# It held every fetch that found nothing for this long, whatever came meanwhile. Kafka does not.
fetch_max_wait_ms = 20
"""


@dataclass(frozen=True, slots=True)
class DemoHome:
    """The folder, made and empty but for the configuration and the DAGs."""

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
        ConfigurationError: There is something in `home` already, which is not ours to touch.
    """
    if home is None:
        began = datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S")
        return Path(".triggerer-demo", f"{began}-{os.getpid()}").absolute()
    home = expand_user(home).absolute()
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise ConfigurationError(
            f"{home} is not an empty folder", hint="each demo starts afresh: name a new folder"
        )
    return home


def make_home(path: Path, *, bootstrap_servers: str) -> DemoHome:
    """Write the DAGs and the configuration of the demo on the embedded Kafka broker.

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
    """Write a configuration, and DAG files by their names.

    Raises:
        ConfigurationError: The folder cannot be written.
    """
    file = path / "triggerer.toml"
    try:
        folder = path / "dags"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir()
        # Whatever repository the demo was started in is to know nothing of it.
        (path / ".gitignore").write_text("*\n", "utf-8")
        for name, text in dags.items():
            (folder / name).write_text(text, "utf-8")
        file.write_text(configuration, "utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the demo cannot write to {path}: {error.strerror}",
            hint="name another folder with --home",
        ) from error
    # Not this process's environment: settings of a real service have no business in a demo.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("TRIGGERER_")
    }
    return DemoHome(path, load_settings(file, environ))
