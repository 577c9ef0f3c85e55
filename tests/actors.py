"""The actor of the changes that tests ask for."""

from typing import Final

from triggerer.domain.actors import CLI, Actor, Role

TESTER: Final = Actor("tester", Role.ADMIN, CLI)
