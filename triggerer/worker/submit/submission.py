"""Describes an application, and makes the command, the configuration and the environment of `spark-submit` for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final
from urllib.parse import urlsplit

from triggerer.config import SparkSettings
from triggerer.domain.authoring.spark_tasks import kind_of
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.classic import Installation, logging_options
from triggerer.worker.spark.settings import (
    classic_conf,
    is_local,
    keys_in_spark_defaults,
    master_of,
    shlex_join,
)

DEPLOY_MODE: Final = "spark.submit.deployMode"
PACKAGES: Final = "spark.jars.packages"
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_NOT_FOR_APPLICATIONS: Final = ("spark.api.mode", "spark.app.name", "spark.master")
"""Settings of our own sessions that an application does not get. `spark-submit` has arguments for the name and the
master."""
_OF_THIS_MACHINE: Final = ("spark.driver.host", "spark.driver.bindAddress")
"""Settings of `[spark] conf` that are wrong for a driver on another machine."""
_SETTINGS_PREFIX: Final = "TRIGGERER__"
"""The prefix of the service's own settings, such as the database's password. No application needs these settings."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One application, ready to be submitted."""

    tag: str
    """The tag by which the application is found after a crash."""
    name: str
    """The application's name in a cluster's lists. It ends with the tag."""
    application: str
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    """The complete configuration, except the master."""
    main_class: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables with the names of the application's DAG, run and task, and with the identity of its output."""

    @property
    def is_cluster_mode(self) -> bool:
        """True if the driver runs on the cluster, and not on this machine."""
        return self.conf.get(DEPLOY_MODE, "client") == "cluster"

    @property
    def is_python(self) -> bool:
        return kind_of(self.application) == ".py"


def application_path(application: str, dags_folder: Path) -> str:
    """Return a URL unchanged. For a file on this machine, return its absolute path.

    Raises:
        SubmitFailed: There is no such file, or it is neither a Python file nor a jar.
    """
    if kind_of(application) is None:
        raise SubmitFailed(
            f"the application {application!r} is neither a Python file nor a jar",
            hint="it ends with .py or .jar",
        )
    parts = urlsplit(application)
    if parts.scheme not in ("", "file"):
        return application
    path = dags_folder / (parts.path if parts.scheme else application)
    if not path.is_file():
        raise SubmitFailed(
            f"there is no application {path}",
            hint="a relative path is below the DAGs folder; a URL such as s3a://… is for the cluster",
        )
    return str(path)


def application_conf(
    settings: SparkSettings,
    installation: Installation,
    own: Mapping[str, str],
    packages: Sequence[str],
) -> dict[str, str]:
    """Return the application's configuration. `own` overrides `[spark] conf`, which overrides our defaults.

    Args:
        own: The settings of the DAG and of the task.
        packages: Maven coordinates, which are added to the packages of `[spark] conf`.
    """
    merged = SparkSettings(
        mode=settings.mode, master=settings.master, conf={**settings.conf, **own}
    )
    conf = classic_conf(
        merged,
        app_name="",
        warehouse=installation.directory / "warehouse",
        java_options=[],
        elsewhere=keys_in_spark_defaults(os.environ, installation.spark_home),
    )
    for key in _NOT_FOR_APPLICATIONS:
        if key not in merged.conf:
            conf.pop(key, None)
    if conf.get(DEPLOY_MODE) == "cluster":
        for key in _OF_THIS_MACHINE:
            if key not in own:
                conf.pop(key, None)
    elif _JAVA_OPTIONS not in merged.conf and (options := logging_options(installation)):
        conf[_JAVA_OPTIONS] = " ".join(filter(None, (conf.get(_JAVA_OPTIONS), shlex_join(options))))
    if packages:
        named = [one for one in conf.get(PACKAGES, "").split(",") if one]
        conf[PACKAGES] = ",".join(dict.fromkeys([*named, *packages]))
    return conf


@contextmanager
def submit_command(
    submission: Submission, settings: SparkSettings, installation: Installation
) -> Iterator[list[str]]:
    """Yield the command of `spark-submit`. The file with the command's settings exists during the block.

    Settings may contain secrets, and `ps` shows command lines. So the settings are in a file that only the user who
    runs this process can read.
    """
    with NamedTemporaryFile("w", prefix="triggerer-submit-", suffix=".conf", delete=True) as file:
        for key, value in submission.conf.items():
            file.write(f"{key} {_escaped(value)}\n")
        file.flush()
        yield [
            str(installation.spark_home / "bin" / "spark-submit"),
            "--master", master_of(settings),
            "--deploy-mode", "cluster" if submission.is_cluster_mode else "client",
            "--name", submission.name,
            "--properties-file", file.name,
            "--load-spark-defaults",
            *(["--class", submission.main_class] if submission.main_class else []),
            submission.application,
            *submission.arguments,
        ]  # fmt: skip


def submit_environment(
    submission: Submission, settings: SparkSettings, installation: Installation
) -> dict[str, str]:
    """Return the complete environment of `spark-submit`."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS_PREFIX)
    }
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
        variables.pop(name, None)
    variables["SPARK_HOME"] = str(installation.spark_home)
    variables["JAVA_HOME"] = str(installation.java_home)
    if is_local(master_of(settings)):
        variables.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {**variables, **submission.environment}


def _escaped(value: str) -> str:
    """Escape the value for a property file of Java."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
