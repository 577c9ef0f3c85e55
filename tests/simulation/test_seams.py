"""The simulation runs the product and its libraries unchanged, and passes its replacements as arguments."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

import pytest

from triggerer.testing import simulation
from triggerer.testing.simulation import simulate
from triggerer.testing.simulation.kernel.sandbox import sandbox

MODULES = [
    importlib.import_module(f"{simulation.__name__}.{module.name}")
    for module in pkgutil.iter_modules(simulation.__path__)
    if module.name != "__main__"
]
WATCHED = ("triggerer", "anyio", "asyncio", "random", "time")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_private_method_of_a_base_class_is_overridden(module: ModuleType) -> None:
    overridden = [
        f"{cls.__qualname__}.{name}"
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__
        for base in cls.__mro__[1:]
        for name in vars(cls).keys() & vars(base).keys()
        if name.startswith("_") and not name.startswith("__") and callable(vars(base)[name])
    ]
    assert overridden == []


def attributes() -> dict[str, object]:
    """All attributes of the loaded modules and their classes."""
    found: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in WATCHED:
            for member, value in vars(module).items():
                found[f"{name}.{member}"] = value
                if inspect.isclass(value) and value.__module__ == name:
                    found |= {f"{name}.{member}.{key}": each for key, each in vars(value).items()}
    return found


def test_only_the_hash_of_cancel_scopes_is_replaced_and_put_back() -> None:
    with sandbox():
        simulate(0, steps=100)  # whatever is imported late is there
    before = attributes()
    with sandbox():
        within = attributes()
    changed = {name for name, value in within.items() if before.get(name) is not value}
    assert changed == {"anyio._backends._asyncio.CancelScope.__hash__"}
    after = attributes()
    assert {name for name, value in after.items() if before.get(name) is not value} == set()
