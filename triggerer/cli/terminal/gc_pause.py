"""No looking for cycles while modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep Python from looking for cycles in this block, and later from looking among what it has left.

    Modules are kept anyway: to look for garbage among them, again and again while they are imported, took a
    twentieth of a command's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
