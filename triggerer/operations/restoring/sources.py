"""Finds out what kind of source each stream has: a log that can be read again, a queue, or neither."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from triggerer.abc import BaseEventTrigger, is_acknowledged
from triggerer.observability.error_texts import error_text
from triggerer.operations.consumer_lag import Asked
from triggerer.plugins import load_trigger_class
from triggerer.streams.cancellation import plugin_code, take_back_stray_cancellations
from triggerer.streams.delivery.group_state import is_log
from triggerer.streams.supervision.stream_state import has_state


class Kind(StrEnum):
    """Says whether messages that were read from a source can be read again."""

    LOG = "log"
    """The source keeps the messages, and they can be read again."""
    QUEUE = "queue"
    """The source deletes messages once they are acknowledged."""
    STORED = "stored"
    """The position in the source is stored in the service's database."""
    LIVE = "live"
    """Nothing is acknowledged: a watcher receives what comes while it runs."""
    UNKNOWN = "unknown"
    """The trigger's code could not be executed here."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a stream."""

    kind: Kind
    error: str | None = None
    """Why the kind is unknown."""


async def find_sources(
    triggers: Iterable[Asked], *, dags_folder: Path | None, allowed_modules: tuple[str, ...] = ()
) -> dict[str, Source]:
    """Return the source of each shared stream, by the stream's id. No source is contacted.

    The function executes users' code in this process, as `triggerer check` does. If that code fails, the kind of the
    source is `UNKNOWN`.

    Args:
        triggers: If several triggers belong to one stream, only the first is used.
    """
    found: dict[str, Source] = {}
    for trigger in triggers:
        if trigger.stream in found:
            continue
        try:
            cls = load_trigger_class(
                trigger.classpath, dags_folder=dags_folder, allowed_modules=allowed_modules
            )
            found[trigger.stream] = Source(await _kind(cls, trigger))
        except Exception as error:  # noqa: BLE001  (the boundary to users' triggers)
            found[trigger.stream] = Source(Kind.UNKNOWN, error_text(error))
        await take_back_stray_cancellations()
    return found


async def _kind(cls: type[BaseEventTrigger], trigger: Asked) -> Kind:
    if not is_acknowledged(cls):
        return Kind.LIVE
    with plugin_code(f"create_shared_stream_producer() of {trigger.classpath}"):
        producer = cls.create_shared_stream_producer(dict(trigger.kwargs))
        await producer.aclose()
    if is_log(type(producer)):
        return Kind.LOG
    return Kind.STORED if has_state(type(producer)) else Kind.QUEUE
