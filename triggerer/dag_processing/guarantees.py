"""Computes the guarantees of the watchers in DAG files, for `triggerer check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio

from triggerer.dag_processing.sources import problem_of
from triggerer.domain.dag_files.parsed import ParsedWatcher, Problem
from triggerer.domain.watchers.guarantees import Finding, Guarantee, PromisedGuarantee
from triggerer.errors import BrokerUnavailable, PluginError, TriggererError
from triggerer.plugins import load_trigger_class
from triggerer.streams.cancellation import take_back_stray_cancellations
from triggerer.streams.supervision.promised_guarantee import promised_guarantee_of, too_weak


@dataclass(frozen=True, slots=True)
class CheckedGuarantee:
    """A watcher, and its delivery guarantee. `promised` is None if the guarantee could not be computed."""

    watcher: ParsedWatcher
    promised: PromisedGuarantee | None


@dataclass(frozen=True, slots=True)
class CheckedGuarantees:
    """All results, in the order of the watchers."""

    results: tuple[CheckedGuarantee, ...] = ()
    errors: tuple[Problem, ...] = ()
    """Guarantees that are weaker than the DAG file demands, demanded guarantees that could not be computed, and errors
    of plugins."""
    warnings: tuple[Problem, ...] = ()
    """Warnings about streams. A demanded guarantee that could not be computed is also here, and is no error, if no
    broker was queried."""


async def check_guarantees(
    watchers: Iterable[ParsedWatcher],
    *,
    dags_folder: Path,
    ack_timeout: timedelta,
    ask: bool,
    allowed_modules: tuple[str, ...] = (),
) -> CheckedGuarantees:
    """Compute the guarantee of each watcher. All streams are checked concurrently.

    The users' triggers are created in this process, one for each stream.

    Args:
        ask: True to query the brokers, for example for a retention time. If a broker is unavailable, the guarantee is
            computed from the settings alone, as with False.
    """
    watchers = list(watchers)
    streams = {watcher.stream_digest: watcher for watcher in reversed(watchers)}
    found: dict[str, PromisedGuarantee | Exception] = {}

    async def check_watcher(watcher: ParsedWatcher) -> None:
        try:
            kind = load_trigger_class(
                watcher.classpath, dags_folder=dags_folder, allowed_modules=allowed_modules
            )
            trigger = kind(**watcher.kwargs)
            try:
                promised = await promised_guarantee_of(trigger, ask=ask, ack_timeout=ack_timeout)
            except BrokerUnavailable:
                promised = await promised_guarantee_of(trigger, ask=False, ack_timeout=ack_timeout)
            found[watcher.stream_digest] = promised
        except Exception as error:  # noqa: BLE001  (the boundary to users' triggers)
            found[watcher.stream_digest] = error
        await take_back_stray_cancellations()

    async with anyio.create_task_group() as tasks:
        for watcher in streams.values():
            tasks.start_soon(check_watcher, watcher)
    results: list[CheckedGuarantee] = []
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for watcher in watchers:
        result = found[watcher.stream_digest]
        promised = result if isinstance(result, PromisedGuarantee) else None
        results.append(CheckedGuarantee(watcher, promised))
        wanted = None if watcher.guarantee is None else Guarantee(watcher.guarantee)
        if promised is not None and wanted is not None and promised.is_below(wanted):
            errors.append(problem_of(watcher, too_weak(promised, wanted)))
        elif isinstance(result, PluginError):
            errors.append(problem_of(watcher, result))
        elif isinstance(result, Exception) and wanted is not None:
            # With `ask=False`, the error is only a warning: a CI runner, for example, has no connection settings.
            (errors if ask else warnings).append(problem_of(watcher, result))
        if promised is not None and streams[watcher.stream_digest] is watcher:
            warnings += [problem_of(watcher, _as_error(one)) for one in promised.warnings]
    warnings += _divided(streams.values(), found)
    return CheckedGuarantees(tuple(results), tuple(errors), tuple(warnings))


def _divided(
    watchers: Iterable[ParsedWatcher], found: Mapping[str, PromisedGuarantee | Exception]
) -> Iterator[Problem]:
    """Yield a warning for two streams that read one source, such as a queue, and so divide the source's messages."""
    first: dict[str, ParsedWatcher] = {}
    for watcher in sorted(watchers, key=lambda one: one.location):
        result = found[watcher.stream_digest]
        shared: dict[int, tuple[ParsedWatcher, list[str]]] = {}
        for source in result.sources if isinstance(result, PromisedGuarantee) else ():
            if (other := first.setdefault(source, watcher)) is not watcher:
                shared.setdefault(id(other), (other, []))[1].append(source)
        for other, sources in shared.values():
            text = (
                f"its stream and the stream of watcher {other.name!r} of asset {other.asset_name!r} both read"
                f" {', '.join(sources)}: each gets a part of the messages"
            )
            hint = (
                "use the same name and connection for the source everywhere; each reader of a Kafka topic needs a"
                " group_id of its own"
            )
            yield problem_of(watcher, TriggererError(text, hint=hint))


def _as_error(finding: Finding) -> TriggererError:
    return TriggererError(finding.text, hint=finding.hint)
