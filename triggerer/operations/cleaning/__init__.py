"""Deletes old data: ended runs with their logs, events that are no longer needed, and other old rows.

`triggerer db clean` and the scheduler's nightly cleaning (`triggerer.service.retention`) call `clean`. The service may
run during a cleaning, because each transaction is short. If a transaction fails, the next cleaning deletes the rest.
Only one cleaning runs at a time, see `triggerer.store.audit.cleanings`.
"""

from triggerer.operations.cleaning.bounds import Bounds
from triggerer.operations.cleaning.cleaned import Cleaned
from triggerer.operations.cleaning.cleaner import QUIET, clean
from triggerer.operations.cleaning.limits import Limits
from triggerer.operations.cleaning.logs import delete_logs
from triggerer.operations.cleaning.nights import night_after
from triggerer.operations.cleaning.steady_clock import SteadyClock

__all__ = [
    "QUIET",
    "Bounds",
    "Cleaned",
    "Limits",
    "SteadyClock",
    "clean",
    "delete_logs",
    "night_after",
]
