"""The conformance suite for producers: checks the rules on which the runtime relies, with a real broker or a double."""

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
    """Tests a producer: subclass this suite as `TestMyBroker`, declare the broker's features, and implement the hooks.

    - Each case runs in its own event loop, between `setup` and `teardown`.
    - `setup` creates an empty source. The case publishes to the source's lanes 0, 1, …
    - A case is skipped if it needs a feature that `features` does not name.
    - A case waits up to `patience_s` seconds for something to happen, and `quiet_s` seconds to see that nothing does.
    """
