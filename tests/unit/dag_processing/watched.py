"""A folder with a DAG file whose watchers have triggers of a module beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from triggerer.dag_processing import parse_once
from triggerer.domain.dag_files.parsed import ParsedWatcher

_BASE = """
from triggerer import BaseEventTrigger

class Base(BaseEventTrigger):
    def __init__(self, key="k", more=None):
        self.key, self.more = key, more

    def serialize(self):
        return f"{__name__}.{type(self).__name__}", {"key": self.key, "more": self.more}

    def shared_stream_key(self):
        return (type(self).__name__, self.key)
"""


async def parsed_watchers(
    folder: Path, triggers: str, watchers: Mapping[str, str]
) -> list[ParsedWatcher]:
    """Write a module of triggers and a DAG file, and return the watchers of the parsed file.

    Args:
        triggers: The source code of trigger classes. They inherit from `Base`, whose arguments are
            `key` and `more`.
        watchers: Asset name -> the source code of the arguments of `AssetWatcher` after the name,
            such as `MyTrigger(key="a"), guarantee="at_least_once"`.
    """
    # Imported modules and their folders are global, so each test's module has its own name.
    module = f"triggers_of_{folder.name}"
    (folder / f"{module}.py").write_text(_BASE + triggers)
    lines = [f"from {module} import *", "from triggerer import Asset, AssetWatcher"]
    lines += [
        f"{name} = Asset({name!r}, watchers=[AssetWatcher('w', {trigger})])"
        for name, trigger in watchers.items()
    ]
    (folder / "dag.py").write_text("\n".join(lines))
    parsed = await parse_once(folder)
    assert parsed.errors == ()
    found = [watcher for file in parsed.files for watcher in file.watchers]
    assert len(found) == len(watchers)
    return found
