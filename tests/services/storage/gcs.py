"""Google Cloud Storage, played by fake-gcs-server, and the jar with which Hadoop and Spark reach it (`gs:`).

fake-gcs-server has honoured `ifGenerationMatch` in uploads since version 1.56. The server is built with Go,
once on each machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.services.process import (
    Daemon,
    accepts_connections,
    free_ports,
    running,
    temporary_home,
)
from tests.services.programs.go_program import find_built, find_go, run_go
from tests.services.programs.java_program import find_jars

_VERSION: Final = "1.56.1"
_BUILD_TIMEOUT_S: Final = 900


@dataclass(frozen=True)
class Gcs:
    """The service, with one empty bucket."""

    endpoint: str
    bucket: str
    jars: Path

    @property
    def root(self) -> str:
        return f"gs://{self.bucket}"

    def conf(self) -> dict[str, str]:
        """Return `[spark] conf` for paths below `root`."""
        settings = {
            # Without `impl`, Hadoop does not look for the connector in `spark.jars`.
            "impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "storage.root.url": f"{self.endpoint}/",
            "auth.type": "UNAUTHENTICATED",
            "project.id": "tests",
            # fake-gcs-server cannot move an object, so the connector copies it and deletes the original.
            "operation.move.enable": "false",
        }
        return {
            "spark.jars": ",".join(map(str, sorted(self.jars.glob("*.jar")))),
            **{f"spark.hadoop.fs.gs.{key}": value for key, value in settings.items()},
        }

    def list_keys(self) -> list[str]:
        """Return the names of the objects. Objects that stand for folders are left out."""
        found: list[str] = []
        query = {"maxResults": "1000"}
        while query:
            with urlopen(
                f"{self.endpoint}/storage/v1/b/{self.bucket}/o?{urlencode(query)}", timeout=30
            ) as answer:
                page = json.load(answer)
            found += [one["name"] for one in page.get("items", ())]
            token = page.get("nextPageToken")
            query = {"pageToken": token} if token else {}
        return sorted(name for name in found if not name.endswith("/"))


@contextmanager
def open_gcs(bucket: str) -> Iterator[Gcs]:
    """Start a server with everything in memory.

    Raises:
        ServiceUnavailable: The jar or the server is not cached, and Maven or Go is missing or could not get it.
    """
    jars, binary = find_jars("gcs_connector"), _find_server()
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    options = {
        "scheme": "http",
        "host": "127.0.0.1",
        "port": port,
        "public-host": f"127.0.0.1:{port}",
        "external-url": endpoint,
        "backend": "memory",
        "log-level": "error",
    }
    with temporary_home("gcs") as home:
        daemon = Daemon(
            "gcs",
            [binary, *(f"-{key}={value}" for key, value in options.items())],
            log=home / "log",
            ready=lambda: accepts_connections(port),
        )
        with running(daemon):
            request = Request(
                f"{endpoint}/storage/v1/b?project=tests",
                data=json.dumps({"name": bucket}).encode(),
                headers={"Content-Type": "application/json"},
            )
            urlopen(request, timeout=30).close()
            yield Gcs(endpoint, bucket, jars)


@cache
def _find_server() -> Path:
    go = find_go("GCS")
    return find_built(f"fake-gcs-server-{_VERSION}", lambda target: _build(go, target))


def _build(go: str, target: Path) -> None:
    folder = target.with_suffix(".folder")
    options = ["-buildvcs=false", "-gcflags=all=-N -l", "-ldflags=-s -w"]
    module = f"github.com/fsouza/fake-gcs-server@v{_VERSION}"
    command = [go, "install", *options, module]
    run_go("GCS", command, timeout_s=_BUILD_TIMEOUT_S, GOBIN=str(folder))
    (folder / "fake-gcs-server").rename(target)
    folder.rmdir()
