"""What the tests of the runtime have in common."""

from __future__ import annotations

import pytest

from tests.unit.streams.scene import Scene
from tests.unit.streams.sources import Raw, Source
from tests.unit.streams.streams import Upstream


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    """What the producer of a test's stream reads."""
    return Upstream(request.node.name)


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Source:
    """What the producer of a test's stream reads, where it counts what is alive of that."""
    Raw.alive.clear()
    return Source(request.node.name)


@pytest.fixture
def queue_scene() -> Scene:
    """A scene whose source is a queue."""
    scene = Scene()
    scene.is_queue = True
    return scene


@pytest.fixture(params=[False, True], ids=["log", "queue"])
def any_scene(request: pytest.FixtureRequest) -> Scene:
    """One of each kind, after the other."""
    scene = Scene()
    scene.is_queue = request.param
    return scene


@pytest.fixture
def scene() -> Scene:
    """A log in memory, and what its watchers do; a module of queues has a fixture of its own."""
    return Scene()
