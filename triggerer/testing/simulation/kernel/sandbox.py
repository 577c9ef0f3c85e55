"""Sets global state of the interpreter and of libraries, so that the seed decides everything."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import structlog


async def _scope_class() -> type[anyio.CancelScope]:
    return type(anyio.CancelScope())


def _same_for_all(_: object) -> int:
    return 0


@contextmanager
def sandbox(*processors: Any) -> Iterator[None]:
    """In this block, everything depends on seeds alone. Logs go through `processors`, or are dropped if there are none.

    The end of the block restores all global state.
    """
    scope = anyio.run(_scope_class)
    hash_before = scope.__hash__
    configured, state = structlog.get_config(), random.getstate()
    disabled = logging.root.manager.disable
    # The garbage collector closes async generators in reference cycles, at moments that depend on the use of memory. So
    # turn the collector off here; `Supervisor` runs it at fixed steps.
    is_collecting = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        # anyio cancels the scopes of a set in the set's order, which depends on their hashes. By default a hash comes
        # from an address, which differs between replays. So give all scopes the same hash.
        scope.__hash__ = _same_for_all  # type: ignore[method-assign,assignment]
        if not processors:
            logging.disable()
        structlog.configure(
            processors=[*processors, _drop],
            wrapper_class=structlog.make_filtering_bound_logger(0 if processors else 50),
            cache_logger_on_first_use=False,
        )
        yield
    finally:
        gc.unfreeze()
        if is_collecting:
            gc.enable()
        scope.__hash__ = hash_before  # type: ignore[method-assign]
        structlog.configure(**configured)
        logging.disable(disabled)
        random.setstate(state)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent
