"""The conformance suite for producers: what the runtime relies on, tried on a real broker or a double."""

from __future__ import annotations

from triggerer.testing.conformance.closing import EndingCases
from triggerer.testing.conformance.delivery import DeliveringCases
from triggerer.testing.conformance.failures import FailingCases
from triggerer.testing.conformance.pausing import PausingCases
from triggerer.testing.conformance.rereading import RereadingCases
from triggerer.testing.conformance.stored_messages import KeepingCases
from triggerer.testing.conformance.stored_state import RestoringCases


class ProducerConformance(
    DeliveringCases,
    FailingCases,
    PausingCases,
    RereadingCases,
    KeepingCases,
    RestoringCases,
    EndingCases,
):
    """Subclass it as `TestMyBroker`, declare the broker's features, and implement the hooks.

    Each case runs in an event loop of its own, between `setup` and `teardown`; it publishes to lanes 0, 1, … of a
    source that `setup` has made empty. A case for a feature that is not declared is skipped, and says which.
    No case relies on time: what must happen has `patience_s` to happen; `quiet_s` is how long a case watches that
    something does not.
    """
