"""The actor that tests name for their changes."""

from typing import Final

from triggerer.domain.actors import CLI, Actor, Role

TESTER: Final = Actor("tester", Role.ADMIN, CLI)
