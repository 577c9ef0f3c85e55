"""Registers mutations, the planted bugs that the simulation must find.

A mutation is a function that yields replacements. A replacement has two parts: a function, method or value of the
product or of the simulation's models, and a wrong version of it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar
from unittest.mock import patch

from triggerer.store.database.script import Script

T = TypeVar("T")
Replacements: TypeAlias = "Iterator[tuple[Any, Any] | tuple[Any, Any, Any]]"
"""The replacements of a mutation, as pairs or triples.

A pair is a function, method or property and its wrong version. A function is replaced in each module of the package
that has imported it. A triple is a module or class, one of its values, and the wrong value. The value is replaced only
there.
"""

Replace: TypeAlias = "Callable[[], Replacements]"
Register: TypeAlias = "Callable[[Replace], Replace]"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug, the rules that it breaks, and a seed that shows it."""

    name: str
    rules: str
    """A pattern. The bug is found if a seed breaks a rule that matches it."""
    seed: int
    """The seed that found the bug last."""
    is_quick: bool
    """True if `make test` looks for the bug: its seed takes half a second or less, and other seeds are easy to find."""
    replace: Replace

    @property
    def file(self) -> Path:
        """The file that states the mutation."""
        return Path(inspect.getfile(self.replace))

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Inside the block the bug is in this process. Everything is put back at the end."""
        with ExitStack() as stack:
            for owner, name, value in list(self.changes()):
                stack.enter_context(patch.object(owner, name, value))
            yield

    def changes(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield each class or module with the name that is replaced there, and the wrong value."""
        for one in list(self.replace()):
            right, wrong = one[-2:]
            value = property(wrong) if isinstance(right, property) else wrong
            for owner, name in [_place(one[0], right)] if len(one) == 3 else _places(right):
                yield owner, name, value


MUTATIONS: dict[str, Mutation] = {}
"""By name, the bugs that a seed of the simulation finds."""


def mutation(*, rules: str, seed: int, quick: bool = False) -> Register:
    """Register the decorated function under its name. Its docstring says what the bug does."""
    return register_in(MUTATIONS, rules=rules, seed=seed, quick=quick)


def register_in(bugs: dict[str, Mutation], *, rules: str, seed: int, quick: bool) -> Register:
    """Register the decorated function in `bugs`."""

    def register(replace: Replace) -> Replace:
        name = replace.__name__
        assert name not in bugs, f"two mutations are named {name}"
        assert replace.__doc__, f"{name} has no docstring"
        bugs[name] = Mutation(name, rules, seed, quick, replace)
        return replace

    return register


def _place(owner: Any, value: Any) -> tuple[Any, str]:
    names = [name for name, one in vars(owner).items() if one is value]
    assert len(names) == 1, f"{owner} has the value under {names}"
    return owner, names[0]


def _places(right: Any) -> list[tuple[Any, str]]:
    """Return the class of a method, or all modules of the package that have a function."""
    function: Any = right.fget if isinstance(right, property) else right
    module = sys.modules[function.__module__]
    owners, name = function.__qualname__.rpartition(".")[::2]
    if not owners:
        return [(one, name) for one in _package() if vars(one).get(name) is right]
    owner: Any = module
    for part in owners.split("."):
        owner = getattr(owner, part)
    return [(owner, name)]


def _package() -> list[ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] == "triggerer" and isinstance(module, ModuleType)
    ]


def answered(script: Script[T], answer: Callable[[Any, list[Any]], list[Any]]) -> Script[T]:
    """Run a script, but replace the rows of each step: `answer` gets the step and its true rows, and returns others."""
    steps: Generator[Any, list[Any], T] = script
    try:
        step = next(steps)
        while True:
            rows = yield step
            step = steps.send(answer(step, rows))
    except StopIteration as end:
        result: T = end.value
        return result
