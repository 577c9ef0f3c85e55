"""The fixtures for tests of whole services."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture
def seed() -> int:
    """The seed of a test's random choices."""
    chosen = int(os.environ.get("TRIGGERER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with TRIGGERER_SEED={chosen}")
    return chosen
