"""The service, wired by hand: what each part is given, what becomes of its failure, how it stops.

Parts and their failures
    Each part rides out what passes by itself: a database or a broker that is away, a child that
    dies. What a part still raises is an error that nobody foresaw, and so is a part that returns
    unasked. Then the whole process stops, with the error and exit code 1, and systemd or a container
    starts it again: all that counts is in the database, while restarting one part in place would
    leave the others with what the broken one held.

Stopping, at the first SIGTERM or SIGINT
    1. Nothing new: DAG files, streams, scheduler and executor stop taking work. Streams wait for
       what is in flight, and the recorder still runs, since that is what they wait for; runs may
       end. Each has `[core] shutdown_grace` for it.
    2. What is left is cancelled; then the recorder and the wakeups stop. Nothing is lost: the broker
       redelivers what it was not told, and runs are queued again.
    A second signal ends the process on the spot, as SIGKILL would, which it is made to survive;
    its children notice and end. `triggerer.processes.signals` says what a signal does before there is a service.
"""

from triggerer.service.parts import ALL_PARTS, Part
from triggerer.service.running import Service, StopReason, open_service, run

__all__ = ["ALL_PARTS", "Part", "Service", "StopReason", "open_service", "run"]
