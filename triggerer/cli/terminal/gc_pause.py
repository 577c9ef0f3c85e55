"""Turns off the garbage collector while modules are imported, and while a short command works."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector in this block. Later collections skip the objects that exist at the end of the block.

    Most of these objects belong to imported modules, which are never garbage. Searching them took a twentieth of a
    command's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
