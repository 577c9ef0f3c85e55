"""Lowers the priority of a process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_TRIES: Final = 20


def give_way(niceness: int) -> None:
    """Raise the niceness of this process, which leads a session, and of the processes that it starts.

    With autogroups (sched(7)) Linux schedules sessions, not processes: a process's niceness counts only within its
    session, and the session has a niceness of its own. Both are raised. The session's stays as it is where it cannot be
    written: on other systems, without permission, or while others write theirs for two seconds.
    """
    os.nice(niceness)
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            # Except for root, the whole machine may change one autogroup in a tenth of a second.
            time.sleep(0.1)
        except OSError:
            # No autogroups here, or no permission.
            return
        else:
            return
