"""Writes notifications: the problem, when it began, the error's first line, and a command that shows more."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from triggerer.domain.instants import readable
from triggerer.domain.notifications import Event, NotificationText, Occurrence, Severity
from triggerer.domain.text.one_line import one_line
from triggerer.observability.redaction import redact_text

_MOST_OF_ERROR: Final = 300
_MOST_OF_ERROR_IN_DIGEST: Final = 120
_MOST_LISTED: Final = 15


class Writer:
    """Writes messages for one installation.

    Args:
        origin: A name that distinguishes this installation from others, such as the host's name.
        page: The URL of the web page, without a slash at its end; empty if it is not known.
    """

    def __init__(self, origin: str, page: str) -> None:
        self._origin = origin
        self._page = page

    def write(self, one: Occurrence) -> NotificationText:
        """Write the message about one occurrence."""
        severity = Severity.SUCCESS if one.is_over else Severity.FAILURE
        return NotificationText(_headline(one), "\n".join(self._lines(one)), severity.value)

    def write_digest(self, many: Sequence[Occurrence]) -> NotificationText:
        """Write one message about several occurrences."""
        is_good = all(one.is_over for one in many)
        lines = [f"- {_summary(one)}" for one in many[:_MOST_LISTED]]
        if (left := len(many) - _MOST_LISTED) > 0:
            lines.append(f"- and {left} more")
        commands = dict.fromkeys(_LISTS[one.event] for one in many)
        lines += [f"Look: {command}" for command in commands]
        lines += self._ending("/")
        severity = Severity.SUCCESS if is_good else Severity.FAILURE
        return NotificationText(_digest_title(many), "\n".join(lines), severity.value)

    def write_test(self) -> NotificationText:
        """Write the message of `triggerer notify test`."""
        body = "Nothing is wrong: somebody called `triggerer notify test`."
        lines = [body, *self._ending("/")]
        return NotificationText("triggerer: test", "\n".join(lines), Severity.INFO.value)

    def write_end(
        self, dag_id: str, run_id: str, state: str, error: str | None, now: datetime
    ) -> NotificationText:
        """Write the message about the end of one run, for a DAG's own callback."""
        if state == "failed":
            return self.write(
                Occurrence(Event.RUN_FAILED, dag_id, dag_id, now, error=error, run_id=run_id)
            )
        lines = [f"Ended at {readable(now)}.", *self._ending("/")]
        title = f"DAG {dag_id}: run {run_id} ended with {state}"
        return NotificationText(title, "\n".join(lines), Severity.SUCCESS.value)

    def _lines(self, one: Occurrence) -> Iterator[str]:
        yield _since(one)
        if said := _error(one, _MOST_OF_ERROR):
            yield f"Error: {said}"
        yield f"Look: {_command(one)}"
        yield from self._ending(_path(one))

    def _ending(self, path: str) -> Iterator[str]:
        if self._page:
            yield f"Page: {self._page}{path}"
        yield f"From: {self._origin}"


_LISTS: Final = {
    Event.WATCHER_FAILING: "triggerer watchers list",
    Event.PARKED: "triggerer watchers parked list",
    Event.RUN_FAILED: "triggerer runs list --state failed",
}


def _headline(one: Occurrence) -> str:
    match one.event:
        case Event.WATCHER_FAILING:
            return f"watcher {one.name} {'works again' if one.is_over else 'is failing'}"
        case Event.PARKED:
            messages = "1 message" if one.count == 1 else f"{one.count} messages"
            return f"{messages} of watcher {one.name} {'is' if one.count == 1 else 'are'} parked"
        case Event.RUN_FAILED if one.count == 1:
            return f"DAG {one.name}: run {one.run_id} failed"
        case _:
            return f"DAG {one.name}: {one.count} runs failed"


def _since(one: Occurrence) -> str:
    at = readable(one.since)
    match one.event:
        case Event.WATCHER_FAILING:
            return f"It had been failing since {at}." if one.is_over else f"Failing since {at}."
        case Event.PARKED:
            return f"Parked at {at}." if one.count == 1 else f"The first was parked at {at}."
        case Event.RUN_FAILED if one.count == 1:
            return f"Failed at {at}."
        case _:
            return f"The first failed at {at}; the latest is {one.run_id}."


def _summary(one: Occurrence) -> str:
    said = _error(one, _MOST_OF_ERROR_IN_DIGEST)
    return f"{_headline(one)}, {readable(one.since)}" + (f": {said}" if said else "")


def _error(one: Occurrence, most: int) -> str:
    said = redact_text(one_line(one.error) or "")
    return said if len(said) <= most else f"{said[: most - 1]}…"


def _command(one: Occurrence) -> str:
    name = shlex.quote(one.name)
    match one.event:
        case Event.WATCHER_FAILING:
            return f"triggerer watchers show {name}"
        case Event.PARKED:
            return f"triggerer watchers parked list --watcher {name}"
        case Event.RUN_FAILED if one.count == 1:
            return f"triggerer runs logs {name} {shlex.quote(one.run_id or '--last')}"
        case _:
            return f"triggerer runs list --dag {name} --state failed"


def _path(one: Occurrence) -> str:
    """Return the path of the page that shows the object."""
    if one.event is Event.RUN_FAILED:
        dag = quote(one.name, safe="")
        return f"/dags/{dag}" + (f"/runs/{quote(one.run_id or '', safe='')}" if one.run_id else "")
    asset, _, watcher = one.name.rpartition("/")
    if one.event is Event.PARKED:
        return f"/parked?{urlencode({'asset': asset, 'watcher': watcher})}"
    return f"/assets?{urlencode({'name': asset})}"


def _digest_title(many: Sequence[Occurrence]) -> str:
    counts: dict[str, int] = {}
    for one in many:
        what = "watchers that work again" if one.is_over else _KINDS[one.event]
        counts[what] = counts.get(what, 0) + 1
    return "triggerer: " + ", ".join(f"{number} {what}" for what, number in counts.items())


_KINDS: Final = {
    Event.WATCHER_FAILING: "failing watchers",
    Event.PARKED: "watchers with parked messages",
    Event.RUN_FAILED: "DAGs with failed runs",
}
