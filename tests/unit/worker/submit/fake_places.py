"""A server that stands for a cluster's API, and a `spark-submit` that calls it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from triggerer.worker.spark.jvm.archive import ClassArchive
from triggerer.worker.spark.jvm.java import Java
from triggerer.worker.spark.sessions.classic import Installation

Answer = Callable[[str, str, Any], tuple[int, object]]


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """Serve on a free port, and yield the port. `answer` turns (method, path, body) into (status, JSON or text)."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, document = answer(self.command, self.path, body)
            text = (document if isinstance(document, str) else json.dumps(document)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def fake_installation(folder: Path, said: str = "", code: int = 0) -> Installation:
    """A Spark whose `spark-submit` writes its arguments and its settings to files, and says something."""
    home = folder / "spark"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "spark-submit"
    script.write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" > {folder}/arguments\n'
        f'while [ "$1" != --properties-file ]; do shift; done; cp "$2" {folder}/conf\n'
        f"echo '{said}' >&2\nexit {code}\n"
    )
    script.chmod(0o755)
    java = Java(Path("/java"), "17.0.1", has_vector_module=True, source="PATH")
    return Installation(
        home, java, Path("/java"), ClassArchive(folder, "key", needs_base=False), folder
    )


def conf_of(folder: Path) -> dict[str, str]:
    lines = (folder / "conf").read_text().splitlines()
    return {key: value for key, _, value in (line.partition(" ") for line in lines)}
