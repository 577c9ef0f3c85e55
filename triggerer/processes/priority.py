"""Lowers the priority of a process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_TRIES: Final = 20


def give_way(niceness: int) -> None:
    """Raise the niceness of this process and of its descendants. The process must lead a session.

    With autogroups (sched(7)), Linux first divides the processor among sessions, and a process's niceness counts only
    within its session. So this function also raises the session's niceness, if the system permits the change within two
    seconds.
    """
    os.nice(niceness)
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            # Without root, the kernel allows one such change per tenth of a second on the whole machine.
            time.sleep(0.1)
        except OSError:
            # This system has no autogroups, or gives no permission.
            return
        else:
            return
