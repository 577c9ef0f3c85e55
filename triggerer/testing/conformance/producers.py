"""The conformance suite for producers: checks the rules that the runtime relies on, with a real broker or a double."""

from __future__ import annotations

from triggerer.testing.conformance.closing import ClosingCases
from triggerer.testing.conformance.delivery import DeliveryCases
from triggerer.testing.conformance.failures import FailureCases
from triggerer.testing.conformance.pausing import PausingCases
from triggerer.testing.conformance.rereading import RereadingCases
from triggerer.testing.conformance.stored_messages import StoredMessageCases
from triggerer.testing.conformance.stored_state import StoredStateCases


class ProducerConformance(
    DeliveryCases,
    FailureCases,
    PausingCases,
    RereadingCases,
    StoredMessageCases,
    StoredStateCases,
    ClosingCases,
):
    """Subclass it as `TestMyBroker`, declare the broker's features, and implement the hooks.

    Each case runs in its own event loop, between `setup` and `teardown`. It publishes to lanes 0, 1, … of a source
    that `setup` has made empty. A case is skipped if the suite does not declare its feature; the skip names the
    feature.
    A case waits up to `patience_s` for an event to happen, and `quiet_s` to see that none does.
    """
