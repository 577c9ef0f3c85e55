"""Jars for Spark's Kafka source, Delta, Iceberg and PostgreSQL, from a cache that Maven fills at the first use."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.services.process import ServiceUnavailable
from tests.services.programs.java_program import find_jars

_PARTS: Final = {
    "kafka": ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2"),
    "delta": ("delta-", "unitycatalog-client"),
    "iceberg": ("iceberg-",),
    "jdbc": ("postgresql",),
}
_EXTENSIONS: Final = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


@dataclass(frozen=True)
class SparkJars:
    """A folder with the jars of all parts: `kafka`, `delta`, `iceberg` and `jdbc` (PostgreSQL's driver)."""

    folder: Path

    def of(self, *parts: str) -> tuple[Path, ...]:
        """Return the jars of these parts."""
        prefixes = tuple(prefix for part in parts for prefix in _PARTS[part])
        return tuple(
            sorted(jar for jar in self.folder.glob("*.jar") if jar.name.startswith(prefixes))
        )

    def conf(self, parts: Iterable[str], warehouse: Path) -> dict[str, str]:
        """Return `[spark] conf` for these parts. Delta is the session's own catalog, Iceberg the catalog `ice`."""
        parts = tuple(parts)
        conf = {"spark.jars": ",".join(map(str, self.of(*parts)))}
        if extensions := [_EXTENSIONS[part] for part in parts if part in _EXTENSIONS]:
            conf["spark.sql.extensions"] = ",".join(extensions)
        if "delta" in parts:
            conf["spark.sql.catalog.spark_catalog"] = (
                "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            )
        if "iceberg" in parts:
            conf |= {
                "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.ice.type": "hadoop",
                "spark.sql.catalog.ice.warehouse": warehouse.as_uri(),
            }
        return conf


def find_spark_jars() -> SparkJars:
    """Return the jars for PySpark 4.1, the release line in the lock file.

    Raises:
        ServiceUnavailable: PySpark 4.1 is not installed, or the jars are not cached and Maven could not get them.
    """
    try:
        from pyspark.version import __version__
    except ImportError as absent:
        raise ServiceUnavailable(f"no PySpark: {absent}") from absent
    if not __version__.startswith("4.1."):
        raise ServiceUnavailable(f"the jars are for PySpark 4.1, and {__version__} is installed")
    return SparkJars(find_jars("spark_jars"))
