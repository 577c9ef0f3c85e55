"""What the tests of the runtime have in common."""

from __future__ import annotations

import pytest

from tests.unit.runtime.streams import Upstream


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    """What the producer of a test's stream reads."""
    return Upstream(request.node.name)
