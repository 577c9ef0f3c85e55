"""The service: builds its parts, runs them, and stops them in order.

Parts and their failures
    A part recovers from temporary faults, such as a database that does not answer, or a child process that dies. Any
    other error of a part is a bug, and so is a part that returns without being cancelled. After a bug, the process
    stops with exit code 1, and systemd or the container restarts the process. The parts share state, so one part alone
    cannot be restarted. Everything that must survive is in the database.

Stopping, at the first SIGTERM, SIGINT or SIGHUP
    1. The DAG processor, the streams, the scheduler and the executor accept no new work. Messages in flight and runs
       have at most `[core] shutdown_grace` to end. The recorder, which stores events, keeps running, because the
       streams wait for it.
    2. The remaining work is cancelled. Then the recorder and the wake-ups stop. Nothing is lost: the broker redelivers
       messages that were not acknowledged, and cancelled runs are queued again.
    A second SIGTERM or SIGINT ends the process at once, like SIGKILL. That is safe: the kernel then kills the child
    processes, and the next start continues from the database.
    `triggerer.processes.signals` says what a signal does before the service has started.
"""

from triggerer.service.parts import ALL_PARTS, Part
from triggerer.service.running import Service, StopReason, open_service, run

__all__ = ["ALL_PARTS", "Part", "Service", "StopReason", "open_service", "run"]
