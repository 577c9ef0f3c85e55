"""The parser's process: `python -m triggerer.dag_processing.parser`, which the service starts.

The service sends two kinds of frames:

- The first frame has the settings: `{"folder", "allowed_modules", "pools", "timeout_s", "at_once"}`. The parser answers
  `{"accepted": 0}`.
- Each later frame requests files: `{"parse": [paths]}`. The parser answers at once, with the number of the paths:
  `{"accepted": n}`. For each path, it sends `{"begun": path}` before it reads the file, and `{"path", "file":
  ParsedFile, "output": text}` afterwards.

The service sends no frame before the previous frame was accepted. If the service sends a path again before the path's
result has come, the parser sends one result, for the later request. The process ends when the service closes the
channel.
"""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from triggerer.dag_processing.describing import parse_file
from triggerer.dag_processing.forks import NOT_NOW, Ended, ForkPool, line_in
from triggerer.domain.dag_files.parsed import ParsedFile, Problem
from triggerer.processes.ipc import ChildChannel, connect_to_parent


def main() -> None:
    """Serve requests until the service closes the channel."""
    with connect_to_parent() as channel:
        try:
            _serve(channel)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except OSError as error:
            # Memory, processes or file descriptors have run out. The service starts another parser after a while.
            sys.stderr.write(f"no DAG file can be read now: {error}\n")
            sys.exit(NOT_NOW)


def _serve(channel: ChildChannel) -> None:
    settings = channel.receive()
    channel.send({"accepted": 0})
    folder = Path(settings["folder"])
    parse = partial(
        _parse,
        folder=folder,
        allowed_modules=settings["allowed_modules"],
        pools=settings["pools"],
    )

    def begin(path: str) -> None:
        channel.send({"begun": path})

    pool = ForkPool(parse, begin, timeout_s=settings["timeout_s"], at_once=settings["at_once"])
    with closing(pool):
        pool.watch(channel.fileno())
        while True:
            ended, is_asked = pool.step()
            for one in ended:
                parsed = one.result if one.failure is None else _dead(one, folder).to_json()
                channel.send({"path": one.path, "file": parsed, "output": one.output})
            if is_asked:
                paths = channel.receive()["parse"]
                for path in paths:
                    pool.add(path)
                channel.send({"accepted": len(paths)})


def _parse(
    path: str, *, folder: Path, allowed_modules: list[str], pools: list[str] | None
) -> dict[str, Any]:
    return parse_file(path, folder, allowed_modules, pools=pools).to_json()


def _dead(ended: Ended, folder: Path) -> ParsedFile:
    line = line_in(ended.output, str(folder / ended.path))
    return ParsedFile(
        path=ended.path,
        parse_seconds=ended.seconds,
        errors=(Problem(ended.path, line, str(ended.failure)),),
        is_broken=True,
    )


if __name__ == "__main__":
    main()
