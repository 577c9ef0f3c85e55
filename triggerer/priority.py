"""How a process lets others go first."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_TRIES: Final = 20


def give_way(niceness: int) -> None:
    """Have this process and what it starts served after those of less niceness (sched(7)); for a session's leader.

    Where Linux shares processors out among sessions ("autogroup", for what no control group limits), a process's own
    niceness holds among those of its session alone, and the session has one of its own. Where that cannot be changed
    (not Linux, not permitted, two seconds of others' changes), the process's own is all there is.
    """
    os.nice(niceness)
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            # Anybody but root may change one in a tenth of a second, on the whole machine.
            time.sleep(0.1)
        except OSError:
            # There is no such thing here, or it is not ours to change.
            return
        else:
            return
