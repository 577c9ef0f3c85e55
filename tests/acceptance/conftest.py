"""What the tests of whole services have in common."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture
def seed() -> int:
    """Of what a test does by chance."""
    chosen = int(os.environ.get("TRIGGERER_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with TRIGGERER_SEED={chosen}")
    return chosen
