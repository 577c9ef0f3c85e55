"""Tells where in the bucket the copy of a log is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from triggerer.domain.run_logs import log_path


@dataclass(frozen=True, slots=True)
class LogDestination:
    """The bucket that the setting `[logs] ship` names, and the prefix of its keys."""

    bucket: str
    prefix: str
    """Empty, or with a `/` at its end."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the destination that a valid `s3://BUCKET/PREFIX` names."""
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        return cls(parts.netloc, f"{prefix}/" if prefix else "")

    def url_of(self, key: str) -> str:
        """Return the URL of an object."""
        return f"s3://{self.bucket}/{key}"

    def key_of(self, host: str, dag_id: str, run_id: str) -> str:
        """Return the key of a run's log, such as `PREFIX/HOST/DAG/RUN.log`.

        Args:
            host: The machine whose executor wrote the log. A run that two machines executed has a log on each.
        """
        return self.key_below(host, log_path("", dag_id, run_id).removeprefix("/logs/"))

    def key_below(self, host: str, file: str) -> str:
        """Return the key of a log, given its path below `<home>/logs`."""
        return f"{self.prefix}{host}/{file}"
