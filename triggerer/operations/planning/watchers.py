"""Finds the watchers that new DAG files add, remove or change, and the effect on positions and backlogs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.domain.dag_files.parsed import ParsedWatcher, WatcherKey
from triggerer.domain.dag_files.replacing import watchers_under_new_names
from triggerer.observability.redaction import redact_text
from triggerer.operations.planning.differences import Difference, differences_of_watchers
from triggerer.store.dags.stored_folder import NO_BACKLOG, Backlog

_STANDALONE: Final = "trigger-"
"""The first characters of `stream_digest` for a trigger that runs alone, without a shared stream."""


@dataclass(frozen=True, slots=True)
class WatcherPlan:
    """A watcher that is new, gone or changed."""

    asset_name: str
    name: str
    change: str
    """`new`, `gone` or `changed`."""
    trigger: str
    """The class path of the new trigger, or of the present trigger if the watcher is gone."""
    differences: tuple[Difference, ...]
    stream_before: str | None
    stream_after: str | None
    is_stream_changed: bool
    positions: int
    """The number of stored positions: one for each lane of a log where the watcher is behind."""
    messages: int
    """The number of stored messages that wait for the watcher now."""
    effect: str
    """The consequence for the watcher's position and backlog, in a sentence or two."""


def plan_watchers(
    before: Folder,
    after: Folder,
    renamed: dict[AssetKey, AssetKey],
    backlogs: Mapping[WatcherKey, Backlog],
) -> list[WatcherPlan]:
    """Return the watchers that the new files add, remove or change, sorted by asset and name.

    Args:
        renamed: Maps the present identity of a renamed asset to its new identity. The asset keeps its watchers.
        backlogs: The backlogs of the present watchers that are behind.
    """
    now_called = watchers_under_new_names(before, renamed)
    streams = {watcher.stream_digest for watcher, _ in before.watchers.values()}
    found = []
    for key in sorted({*now_called, *after.watchers}):
        old_key, new = now_called.get(key), after.watchers.get(key)
        old = None if old_key is None else before.watchers[old_key][0]
        backlog = NO_BACKLOG if old_key is None else backlogs.get(old_key, NO_BACKLOG)
        if old is None:
            assert new is not None
            found.append(_new(new[0], streams))
        elif new is None:
            found.append(_gone(old, backlog))
        elif differs(old, new[0]):
            found.append(_changed(old, new[0], backlog, streams))
    return found


def differs(old: ParsedWatcher, new: ParsedWatcher) -> bool:
    """Return True if the new declaration gives the watcher another trigger or another stream."""
    return (old.trigger_digest, old.stream_digest) != (new.trigger_digest, new.stream_digest)


def _new(new: ParsedWatcher, streams: set[str]) -> WatcherPlan:
    if new.stream_digest.startswith(_STANDALONE):
        effect = "it runs alone, without a stream"
    elif new.stream_digest in streams:
        effect = "it joins a stream that is read already, at the next message of the stream"
    else:
        effect = f"its stream is new, and {_BEGINS}"
    return WatcherPlan(
        new.asset_name,
        new.name,
        "new",
        new.classpath,
        (),
        stream_before=None,
        stream_after=redact_text(new.stream_key),
        is_stream_changed=False,
        positions=0,
        messages=0,
        effect=effect,
    )


def _gone(old: ParsedWatcher, backlog: Backlog) -> WatcherPlan:
    return WatcherPlan(
        old.asset_name,
        old.name,
        "gone",
        old.classpath,
        (),
        stream_before=redact_text(old.stream_key),
        stream_after=None,
        is_stream_changed=False,
        positions=backlog.positions,
        messages=backlog.messages,
        effect=_ended(backlog),
    )


def _changed(
    old: ParsedWatcher, new: ParsedWatcher, backlog: Backlog, streams: set[str]
) -> WatcherPlan:
    is_moved = old.stream_digest != new.stream_digest
    if not is_moved:
        effect = f"its stream stays: {_KEPT}{_counted(backlog)}"
    elif old.stream_digest.startswith(_STANDALONE) and new.stream_digest.startswith(_STANDALONE):
        effect = "it runs alone: it is stopped, and started with the new arguments"
    elif new.stream_digest in streams:
        effect = f"its stream changes: {_ended(backlog)}; it joins a stream that is read already"
    else:
        effect = f"its stream changes: {_ended(backlog)}; the new stream {_BEGINS}"
    return WatcherPlan(
        new.asset_name,
        new.name,
        "changed",
        new.classpath,
        differences_of_watchers(old, new),
        stream_before=redact_text(old.stream_key),
        stream_after=redact_text(new.stream_key),
        is_stream_changed=is_moved,
        positions=backlog.positions,
        messages=backlog.messages,
        effect=effect,
    )


_KEPT: Final = "it keeps its positions and its backlog"
_BEGINS: Final = (
    "begins where the source has stored a position, or else where the trigger's arguments say"
)


def _ended(backlog: Backlog) -> str:
    if backlog == NO_BACKLOG:
        return "its position ends (it is not behind now)"
    set_aside = ", and its stored messages are set aside" if backlog.messages else ""
    return f"its position ends{set_aside}{_counted(backlog)}"


def _counted(backlog: Backlog) -> str:
    """Return the present backlog in parentheses, or an empty text if there is none."""
    parts = []
    if backlog.positions:
        parts.append(f"behind in {backlog.positions} lane{'s' * (backlog.positions > 1)}")
    if backlog.messages:
        parts.append(f"{backlog.messages} stored message{'s' * (backlog.messages > 1)}")
    return f" ({', '.join(parts)} now)" if parts else ""
