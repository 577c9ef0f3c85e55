"""Google Cloud Storage by fake-gcs-server, and the jar by which Hadoop, and so Spark, reaches it (`gs:`).

fake-gcs-server honours `ifGenerationMatch` in each kind of upload since its version 1.56. It is built with Go, once on
a machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.services.java_program import find_jars
from tests.services.process import (
    Daemon,
    ServiceUnavailable,
    accepts_connections,
    free_ports,
    running,
    temporary_home,
)

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
            # Without it, Hadoop does not look for the connector in `spark.jars`.
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
        """Return the objects' names, without those that stand for folders."""
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
    go = shutil.which("go")
    if go is None:
        raise ServiceUnavailable("GCS: there is no go, with which its test server is built")
    # A cache that outlives the checkout.
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = cache_home / "triggerer-tests"
    found = root / f"fake-gcs-server-{_VERSION}"
    root.mkdir(parents=True, exist_ok=True)
    with (root / "gcs.lock").open("w") as lock:
        # One of several workers of a session builds it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            _build(go, found)
    return found


def _build(go: str, target: Path) -> None:
    module = f"github.com/fsouza/fake-gcs-server@v{_VERSION}"
    draft = target.with_suffix(".draft")
    built = subprocess.run(
        [go, "install", "-buildvcs=false", "-gcflags=all=-N -l", "-ldflags=-s -w", module],
        env={"GOGC": "400", **os.environ, "CGO_ENABLED": "0", "GOBIN": str(draft)},
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if built.returncode:
        raise ServiceUnavailable(f"GCS: go install failed:\n{built.stderr[-2000:]}")
    (draft / "fake-gcs-server").rename(target)
    draft.rmdir()
