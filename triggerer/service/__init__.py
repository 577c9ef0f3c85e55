"""The service: builds its parts, runs them, and stops them in order.

Parts and their failures
    A part recovers on its own from temporary faults, such as a database that does not answer, or a child process that
    dies. Any other error of a part is a bug, and so is a part that returns without being cancelled. The whole process
    then stops with exit code 1, and systemd or the container restarts it. One part alone cannot be restarted, because
    the parts share state. Everything that must survive is in the database.

Stopping, at the first SIGTERM, SIGINT or SIGHUP
    1. The DAG processor, the streams, the scheduler and the executor accept no new work. Messages in flight and runs
       have at most `[core] shutdown_grace` to end. The recorder, which stores events, keeps running, because the
       streams wait for it.
    2. The work that is left is cancelled. Then the recorder and the wake-ups stop. Nothing is lost: the broker
       redelivers messages that were not acknowledged, and cancelled runs are queued again.
    A second SIGTERM or SIGINT ends the process at once, like SIGKILL. That is safe, because the kernel kills the child
    processes when the service is gone, and a restart continues from the database.
    `triggerer.processes.signals` says what a signal does before the service has started.
"""

from triggerer.service.parts import ALL_PARTS, Part
from triggerer.service.running import Service, StopReason, open_service, run

__all__ = ["ALL_PARTS", "Part", "Service", "StopReason", "open_service", "run"]
