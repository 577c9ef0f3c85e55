"""Calls a producer's hooks that tell how to store a message, and checks what the hooks return."""

from __future__ import annotations

from typing import Any

import structlog

from triggerer.abc import SharedStreamProducer
from triggerer.errors import PluginError
from triggerer.observability.error_texts import error_text
from triggerer.streams.cancellation import plugin_code

_log = structlog.get_logger(__name__)


def dump_event(producer: SharedStreamProducer, event: Any) -> bytes | None:
    """Return the bytes to store for a message (`SharedStreamProducer.dump_event`), or None if it needs no copy.

    Raises:
        Exception: The producer's error.
        PluginError: The producer returned neither bytes nor None.
    """
    what = f"dump_event() of {type(producer).__qualname__}"
    with plugin_code(what):
        data: Any = producer.dump_event(event)
        if data is not None and not isinstance(data, bytes):
            raise PluginError(f"{what} returned {type(data).__qualname__}, not bytes or None")
        return data


def idempotency_key(producer: SharedStreamProducer, payload: Any) -> str | None:
    """Return the message's idempotency key (`SharedStreamProducer.get_idempotency_key`), or None if it has no key.

    Raises:
        Exception: The producer's error.
        PluginError: The producer returned neither a string nor None.
    """
    what = f"get_idempotency_key() of {type(producer).__qualname__}"
    with plugin_code(what):
        key: Any = producer.get_idempotency_key(payload)
        if key is not None and not isinstance(key, str):
            raise PluginError(f"{what} returned {type(key).__qualname__}, not a str or None")
        return key


def dead_letters_rejected(producer: SharedStreamProducer, payload: Any) -> bool:
    """Return whether the producer dead-letters the message if it is rejected.

    If `SharedStreamProducer.dead_letters_rejected` raises, the answer is False, so that the message is parked.
    """
    what = f"dead_letters_rejected() of {type(producer).__qualname__}"
    try:
        with plugin_code(what):
            return bool(producer.dead_letters_rejected(payload))
    except Exception as error:
        _log.warning("a producer's hook failed", hook=what, error=error_text(error))
        return False
