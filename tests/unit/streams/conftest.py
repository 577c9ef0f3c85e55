"""Fixtures of the tests of the streams."""

from __future__ import annotations

import pytest

from tests.unit.streams.scene import Scene
from tests.unit.streams.sources import Raw, Source
from tests.unit.streams.streams import Upstream


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    """Return the upstream of the test's streams."""
    return Upstream(request.node.name)


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Source:
    """Return an upstream that counts its living messages."""
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
    """A scene whose source is a log, and then one whose source is a queue."""
    scene = Scene()
    scene.is_queue = request.param
    return scene


@pytest.fixture
def scene() -> Scene:
    """A scene whose source is a log in memory. Modules about queues override this fixture."""
    return Scene()
